// What dropout refuses, and its ends; its masks and gradients are in scenarios/random.
#include "random/dropout.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>

#include "base/error.h"

namespace shardproof::tests {
namespace {

TEST_CASE("no dropout draws nothing, full dropout gives zeros, and others are refused", "[RN-2]") {
  DrawLog log;
  RngTracker rng(&log);
  rng.add(kDataParallelRng, 40);
  const at::Tensor x = at::ones({5}, at::kDouble);
  CHECK(dropout(x, 0, rng, "x").equal(x));
  CHECK(log.draws().empty());
  const at::Tensor infinite = at::full({4}, std::numeric_limits<double>::infinity());
  CHECK(dropout(infinite, 1, rng, "x").eq(0).all().item<bool>());
  for (const double p : {-0.1, 1.1, std::nan("")}) CHECK_THROWS_AS(dropout(x, p, rng, "x"), Error);
  CHECK_THROWS_AS(Dropout(2, "x"), Error);
}

}  // namespace
}  // namespace shardproof::tests
