// The edges of the loss scale; scenarios/train/float16 and float16_overflow have its usual steps.
#include "train/loss_scale.h"

#include <catch2/catch.hpp>
#include <cmath>

namespace shardproof {
namespace {

TEST_CASE("the scale grows on from more good steps than the interval", "[train][PW-1]") {
  LossScale scale({.enabled = true, .growth_interval = 2});
  scale.set_state(LossScaleState{.scale = 8, .good_steps = 5});
  scale.update(/*overflow=*/false);
  CHECK(scale.scale() == 16);
  CHECK(scale.state().good_steps == 0);
}

TEST_CASE("the scale does not grow beyond float32", "[train][PW-1]") {
  LossScale scale(
      {.enabled = true, .init_scale = 1e30, .growth_factor = 100, .growth_interval = 1});
  for (int step = 0; step < 200; ++step) scale.update(/*overflow=*/false);
  CHECK(scale.scale() == 1e38);
  CHECK(std::isfinite(static_cast<float>(scale.scale())));
}

}  // namespace
}  // namespace shardproof
