// Values that no rank computed: zeros in other places, and memory that was never filled.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "sim/judge/explain/hypotheses.h"
#include "tests/unit/judge/planted_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {
const Mesh kOneRank({{"tp", 1}});
}

TEST_CASE("zeros that moved along the positions are a mask that is off", "[explanations]") {
  const at::Tensor counts = at::tensor({1., 1., 0., 1., 0., 0., 1., 1., 0., 1.}, at::kDouble);
  const auto masked = [&](int64_t by) {
    return numbered({2, 10, 3}, 5) * counts.roll(by).view({1, 10, 1});
  };
  const auto found = propose_mask_shift(whole(masked(1), masked(0), true), kOneRank);
  REQUIRE(found);
  CHECK_THAT(found->pattern, Catch::Contains("the golden's moved by 1"));
  CHECK(found->likely == "a mask is off by 1");
  at::Tensor near = masked(1);
  near[1].select(0, 4).fill_(0.3);
  near[1].select(0, 7).zero_();
  CHECK_FALSE(propose_mask_shift(whole(near, masked(0), true), kOneRank));
  CHECK_FALSE(propose_mask_shift(whole(masked(0) * 2, masked(0), true), kOneRank));
  const at::Tensor weights = at::tensor({0.5, 3.}, at::kDouble).view({2, 1, 1});
  CHECK(propose_mask_shift(whole(masked(1) * weights, masked(0), true), kOneRank));
}

TEST_CASE("other values between zeros that moved are no mask", "[explanations]") {
  const at::Tensor counts = at::tensor({1., 1., 0., 1., 0., 0., 1., 1., 0., 1.}, at::kDouble);
  const at::Tensor golden = numbered({2, 10, 3}, 5) * counts.view({1, 10, 1});
  const at::Tensor moved = counts.roll(1).view({1, 10, 1});
  CHECK_FALSE(propose_mask_shift(whole(numbered({2, 10, 3}, 6) * moved, golden, true), kOneRank));
  CHECK_FALSE(propose_mask_shift(whole(golden.flip(1), golden, true), kOneRank));
}

TEST_CASE("one value where the golden has many was never written", "[explanations]") {
  const auto with = [](double value) {
    return found(judge::world(), in(kGrad, [=](int64_t, at::Tensor t) { return t.fill_(value); }));
  };
  CHECK_THAT(with(77).pattern, Catch::Contains("every element is 77 on all ranks"));
  CHECK_THAT(with(77).likely, Catch::Contains("never filled"));
  CHECK_THAT(with(0).pattern, Catch::Contains("every element is 0"));
  CHECK_THAT(with(0).likely, Catch::StartsWith("it was never filled, or a gradient was cut off"));
  const Divergence nearly = found(judge::world(), in(kGrad, [](int64_t rank, at::Tensor t) {
                                    t.fill_(77);
                                    if (rank == 0) t.view({-1})[0] = 3;
                                    return t;
                                  }));
  CHECK_THAT(nearly.likely, !Catch::Contains("never filled"));
  // The last rank's shard of 11 rows ends with a row of padding, which is not compared.
  JudgedWorld padded(spec_of(1, 3), {seen(kGrad, numbered({11, 4}, 7))});
  padded.cut_as(kGrad, Layout({Cut::padded(0, "tp", 12)}));
  const Divergence unfilled =
      found(padded, in(kGrad, [](int64_t, at::Tensor t) { return t.fill_(77); }));
  CHECK_THAT(unfilled.pattern, Catch::Contains("every element is 77 on all ranks"));
}
