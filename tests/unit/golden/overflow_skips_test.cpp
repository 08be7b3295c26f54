#include "golden/overflow_skips.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

namespace shardproof::golden {
namespace {

OverflowSkips skips_with(double growth_factor, int64_t growth_interval) {
  sim::CaseSpec spec;
  spec.precision = Precision::kFloat16;
  spec.loss_scale.growth_factor = growth_factor;
  spec.loss_scale.growth_interval = growth_interval;
  return {spec, /*finds_them=*/true, std::make_shared<std::vector<bool>>()};
}

TEST_CASE("the golden's loss scale grows on from more good steps than the interval", "[golden]") {
  OverflowSkips skips = skips_with(2, 3);
  skips.set_state({.scale = 8, .good_steps = 7});
  CHECK_FALSE(skips.unscale({at::ones({2})}));
  CHECK(skips.scale() == 16);
  std::vector<double> scales;
  for (int step = 0; step < 4; ++step) {
    skips.unscale({at::ones({2})});
    scales.push_back(skips.scale());
  }
  CHECK(scales == std::vector<double>{16, 16, 32, 32});
}

TEST_CASE("the golden's loss scale does not grow beyond float32", "[golden]") {
  OverflowSkips skips = skips_with(100, 1);
  skips.set_state({.scale = 1e30});
  for (int step = 0; step < 200; ++step) skips.unscale({at::ones({1}, at::kDouble)});
  CHECK(skips.scale() == 1e38);
}

}  // namespace
}  // namespace shardproof::golden
