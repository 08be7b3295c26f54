// Which errors are claimed to be roundings of float32.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "tests/unit/judge/planted_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

TEST_CASE("a factor of some rows that is nearly 1 is not a rounding of float32", "[explanations]") {
  const auto row_changed = [](const auto& change) {
    return found(judge::world(), in(kGrad, [&](int64_t, at::Tensor t) {
                   t[1].copy_(change(t[1]));
                   return t;
                 }));
  };
  const Divergence factor = row_changed([](const at::Tensor& row) { return row * (1 + 3e-7); });
  CHECK_THAT(factor.pattern, Catch::Contains("wrong only at dim 0 1, 5, 9") &&
                                 Catch::Contains("are (1 + 3e-07) x golden"));
  CHECK(factor.likely.empty());
  const Divergence rounded =
      row_changed([](const at::Tensor& row) { return row.to(at::kFloat).to(at::kDouble); });
  CHECK_THAT(rounded.likely, Catch::Contains("in float32 somewhere on the way"));
}

TEST_CASE("errors that are too small or all in one direction are no roundings of float32",
          "[explanations]") {
  const auto changed = [](double by, bool is_one_way) {
    return found(judge::world(), in(kGrad,
                                    [&](int64_t, at::Tensor t) {
                                      const at::Tensor drawn =
                                          at::arange(t.numel(), t.options()).view(t.sizes());
                                      const at::Tensor errors = drawn.mul(drawn).sin() * by;
                                      t += is_one_way ? errors.abs() : errors;
                                      return t;
                                    }))
        .likely;
  };
  CHECK_THAT(changed(1e-7, false), Catch::Contains("in float32 somewhere on the way"));
  CHECK(changed(1e-7, true).empty());  // none is less than it should be
  CHECK(changed(3e-10, false).empty());
}
