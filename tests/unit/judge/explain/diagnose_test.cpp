#include <catch2/catch.hpp>
#include <cmath>

#include "tests/unit/judge/planted_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;
using Ranks = std::vector<int64_t>;

namespace {

JudgedWorld::Plant times(double factor) {
  return in(kGrad, [=](int64_t, const at::Tensor& t) { return t * factor; });
}

}  // namespace

TEST_CASE("a factor is named after the axis whose size it is", "[diagnose]") {
  const Divergence twice = found(judge::world(), times(2));
  CHECK(twice.tensor == kGrad);
  CHECK(twice.ranks == Ranks{0, 1, 2, 3, 4, 5});
  CHECK(twice.pattern ==
        "every element is 2.00 x golden on all ranks; 2 is the size of dp; "
        "explains all of the difference");
  CHECK_THAT(twice.likely, Catch::Contains("summed once too often"));
  CHECK_THAT(found(judge::world(), times(1.0 / 3)).pattern,
             Catch::Contains("(1/3)") && Catch::Contains("3 is the size of tp"));
  CHECK_THAT(found(judge::world(), times(1.0 / 3)).likely, Catch::Contains("averaged"));
  CHECK_THAT(found(judge::world(), times(6)).pattern, Catch::Contains("6 is the size of dp x tp"));
  CHECK_THAT(found(judge::world(), times(-1)).likely, Catch::Contains("sign"));
  CHECK_THAT(found(judge::world(), times(0.25)).pattern, Catch::Contains("clipping factor"));
  CHECK_THAT(found(judge::world(), times(4)).likely, Catch::Contains("not clipped"));
  CHECK_THAT(found(judge::world(), times(1.37)).pattern, Catch::Contains("no size of the mesh"));
  CHECK(found(judge::world(), times(1.37)).likely.empty());
}

TEST_CASE("a gradient may have a loss scale", "[diagnose]") {
  const Divergence scaled = found(judge::world(), times(1024));
  CHECK_THAT(scaled.pattern,
             Catch::Contains("every element is 1024.00 x golden on all ranks; 2^10"));
  CHECK_THAT(scaled.likely,
             Catch::Contains("not divided by 1024: the loss scale, or a count of tokens"));
  CHECK_THAT(found(judge::world(), times(96)).likely, !Catch::Contains("loss scale"));
}

TEST_CASE("a factor is the square of a size, where no size fits", "[diagnose]") {
  CHECK_THAT(found(judge::world(), times(9)).pattern,
             Catch::Contains("every element is 9.00 x golden") &&
                 Catch::Contains("the square of 3, the size of tp"));
  CHECK_THAT(found(judge::world(), times(9)).likely,
             Catch::Contains("where a division by it belongs"));
  CHECK_THAT(found(judge::world(), times(1.0 / 9)).likely, Catch::Contains("over that axis twice"));
  CHECK_THAT(found(judge::world(), times(4)).pattern,
             !Catch::Contains("square"));  // 1 / clipping factor
  CHECK_THAT(found(judge::world(), times(6)).pattern,
             !Catch::Contains("square"));  // the size of dp x tp
}

TEST_CASE("a factor that is a quotient of counts names them", "[diagnose]") {
  const Divergence neighbors = found(judge::world(), times(15.0 / 16));
  CHECK_THAT(neighbors.pattern, Catch::Contains("every element is 0.9375 x golden on all ranks; "
                                                "15/16, which is not a size of the mesh"));
  CHECK_THAT(neighbors.likely, Catch::Contains("divided by 16 where 15 are due") &&
                                   Catch::Contains("one in 16 is too many"));
  CHECK_THAT(found(judge::world(), times(4095.0 / 4096)).likely,
             Catch::Contains("divided by 4096 where 4095 are due"));
  const Divergence others = found(judge::world(), times(8.0 / 5));
  CHECK_THAT(others.likely, Catch::Contains("divided by 5 where 8 are due"));
  CHECK_THAT(others.likely, !Catch::Contains("too many"));
  const Divergence counted_twice = found(judge::world(), times(29.0 / 43));
  CHECK_THAT(counted_twice.pattern, Catch::Contains("29/43, which is not a size of the mesh"));
  CHECK_THAT(counted_twice.likely, Catch::StartsWith("divided by 43 where 29 are due"));
  CHECK_THAT(found(judge::world(), times(7)).likely, Catch::StartsWith("not divided by 7, or"));
  CHECK_THAT(found(judge::world(), times(1.0 / 7)).likely,
             Catch::StartsWith("divided by 7 once too"));
}

TEST_CASE("a loss that is wrong by a quotient of counts names them", "[diagnose]") {
  const auto times_loss = [](double factor) {
    const JudgedWorld judged(spec_of(2, 3),
                             {seen("loss", at::scalar_tensor(3.5, at::kDouble), Phase::kForward),
                              seen(kGrad, numbered({12, 10}))});
    return found(judged, in("loss", [=](int64_t, const at::Tensor& t) { return t * factor; }));
  };
  const Divergence counted_twice = times_loss(29.0 / 43);
  CHECK(counted_twice.tensor == "loss");
  CHECK(counted_twice.pattern == "the value is 0.6744186 x golden on all ranks; 29/43");
  CHECK_THAT(counted_twice.likely, Catch::StartsWith("divided by 43 where 29 are due"));
  const Divergence near = times_loss(0.67442);
  CHECK(near.pattern == "the value is 0.67442 x golden on all ranks");
  CHECK(near.likely.empty());

  // What a receiver keeps as it was made.
  constexpr auto kScale = "param.buffers.scale";
  const JudgedWorld refit(
      spec_of(2, 3), {seen(kScale, at::scalar_tensor(1.0 / 231, at::kDouble), Phase::kForward)});
  const Divergence kept =
      found(refit, in(kScale, [](int64_t, const at::Tensor& t) { return at::ones_like(t); }));
  CHECK(kept.pattern == "the value is 231 x golden on all ranks");
  CHECK(kept.likely.empty());
}

TEST_CASE("a number that is near the size of an axis is not that size in float64", "[diagnose]") {
  const Divergence near = found(judge::world(), times(2.00005));
  CHECK_THAT(near.pattern, Catch::StartsWith("every element is 2.00005 x golden on all ranks"));
  CHECK_THAT(near.pattern, !Catch::Contains("dp"));
  CHECK(near.likely.empty());
  CHECK_THAT(found(judge::world(), times(1 + 3e-6)).pattern,
             Catch::StartsWith("every element is (1 + 3e-06) x golden"));
}

TEST_CASE("ranks with a factor of their own are listed with it", "[diagnose]") {
  const auto with = [](const std::vector<double>& factors) {
    return found(judge::world(), in("grad.b", [=](int64_t rank, const at::Tensor& t) {
                   return t * factors[static_cast<size_t>(rank)];
                 }));
  };
  const Divergence own = with({0.37, 0.41, 0.37, 0.53, 0.59, 0.61});
  CHECK_THAT(own.pattern, Catch::Contains("a factor of that rank: 0.37 on rank 0, 0.41 on rank 1"));
  CHECK_THAT(own.likely, Catch::Contains("such as its norm (clipping)"));
  const Divergence addends = with({0.1, 0.2, 0.3, 0.15, 0.15, 0.1});  // they add up to 1
  CHECK(addends.likely == "the sum over dp x tp is missing");
}

TEST_CASE("a factor that only looks like a quotient of counts names none", "[diagnose]") {
  for (const double factor : {7 + 1e-9, 15.0 / 16 + 1e-9, 101.0 / 103, -15.0 / 16}) {
    const Divergence other = found(judge::world(), times(factor));
    CHECK_THAT(other.pattern, Catch::Contains("the factor matches no size of the mesh"));
    CHECK(other.likely.empty());
  }
  const Divergence rounded =
      found(judge::world(Precision::kFloat32),
            in(kGrad, [](int64_t, const auto& t) { return (t * (15.0 / 16)).to(at::kFloat); }));
  CHECK_THAT(rounded.likely, !Catch::Contains("are due"));
}

TEST_CASE("in float32 a factor is still seen through the rounding", "[diagnose]") {
  const Divergence twice =
      found(judge::world(Precision::kFloat32),
            in(kGrad, [](int64_t, const at::Tensor& t) { return (t * 2).to(at::kFloat); }));
  CHECK_THAT(twice.pattern, Catch::Contains("2 is the size of dp"));
  CHECK(twice.worst.rounding_only);
}

TEST_CASE("a wrong norm is a factor, or the root of one", "[diagnose]") {
  const auto norm = [](double factor) {
    return in("grad_norm", [=](int64_t, const at::Tensor& t) { return t * factor; });
  };
  CHECK_THAT(found(judge::world(), norm(std::sqrt(3.0))).pattern,
             Catch::Contains("square root of 3, the size of tp"));
  CHECK_THAT(found(judge::world(), norm(3)).pattern, Catch::Contains("3 is the size of tp"));
  CHECK_THAT(found(judge::world(), norm(1 / std::sqrt(3.0))).likely,
             Catch::Contains("squares are averaged"));
  CHECK(found(judge::world(), norm(1.1)).pattern == "the value is 1.1 x golden on all ranks");
  CHECK(found(judge::world(), norm(1.1)).likely.empty());
}

TEST_CASE("one rank only, and the ranks of one coordinate, are told apart", "[diagnose]") {
  const auto on = [](const Ranks& bad) {
    return in("grad.b", [=](int64_t rank, at::Tensor t) {
      if (std::find(bad.begin(), bad.end(), rank) != bad.end()) t[2] += 0.5;
      return t;
    });
  };
  const Divergence one = found(judge::world(), on({4}));
  CHECK(one.ranks == Ranks{4});
  CHECK_THAT(one.pattern, Catch::Contains("on rank 4 only"));
  CHECK_THAT(found(judge::world(), on({1, 4})).pattern, Catch::Contains("on ranks 1, 4 (tp 1)"));
  CHECK_THAT(found(judge::world(), on({3, 4, 5})).pattern,
             Catch::Contains("on ranks 3, 4, 5 (dp 1)"));
}

TEST_CASE("permuted chunks name their order", "[diagnose]") {
  const JudgedWorld judged = judge::world();
  const auto reorder = [&](const std::vector<int64_t>& order) {
    return full(judged, kGrad, rows_over_tp(), [=](const at::Tensor& t) {
      std::vector<at::Tensor> chunks = t.chunk(static_cast<int64_t>(order.size()), 0);
      std::vector<at::Tensor> out;
      for (const int64_t i : order) out.push_back(chunks[i]);
      return at::cat(out, 0);
    });
  };
  const Divergence shards = found(judged, reorder({1, 2, 0}));
  CHECK_THAT(shards.pattern,
             Catch::Contains("the 3 chunks along dim 0") && Catch::Contains("1 2 0"));
  CHECK_THAT(shards.likely, Catch::Contains("shards of tp"));
  CHECK_THAT(found(judged, reorder({0, 1, 3, 2, 4, 5})).pattern, Catch::Contains("0 1 3 2 4 5"));
}

TEST_CASE("NaN is counted and located", "[diagnose]") {
  const Divergence nan = found(judge::world(), in(kGrad, [](int64_t rank, at::Tensor t) {
                                 if (rank == 5) t[0][3] = NAN;
                                 return t;
                               }));
  CHECK_THAT(nan.pattern, Catch::Contains("1 NaN and 0 infinite of 40 elements on rank 5 only"));
}

TEST_CASE("padding that is not zero is called padding", "[diagnose]") {
  at::Tensor logprobs = numbered({3, 5});
  logprobs.select(1, 0).zero_();
  logprobs[1].narrow(0, 3, 2).zero_();
  const JudgedWorld judged(spec_of(1, 2), {seen("logprobs", logprobs, Phase::kForward)});
  const Divergence padding = found(judged, in("logprobs", [](int64_t, at::Tensor t) {
                                     t[1][3] = -1e-14;  // within the allowance
                                     return t;
                                   }));
  CHECK_THAT(padding.pattern,
             Catch::Contains("dim 0 1, dim 1 3") && Catch::Contains("exactly zero in the golden"));
  CHECK_THAT(padding.likely, Catch::Contains("padding or dropped positions are counted"));
}

TEST_CASE("a parameter that holds another one's values names it", "[diagnose]") {
  const at::Tensor other = numbered({6}, 10);
  const JudgedWorld judged(spec_of(1, 2),
                           {seen("param.a", numbered({6}, 9)), seen("param.b", other)});
  const auto swapped = in("param.a", [=](int64_t, const at::Tensor&) { return other; });
  CHECK_THAT(found(judged, swapped).pattern, Catch::Contains("equals the golden's param.b"));
}

TEST_CASE("a sum over the axis that cuts a tensor is named", "[diagnose]") {
  const at::Tensor golden = numbered({12, 10}, 4);
  const auto of_parts = [&](const at::Tensor& all) {
    return found(judge::world(),
                 in(kGrad, [=](int64_t, const at::Tensor&) { return all.clone(); }));
  };
  const at::Tensor sum = golden.view({3, 4, 10}).sum(0);
  const Divergence one = of_parts(sum);
  CHECK_THAT(one.pattern, Catch::StartsWith("each element is the sum of the golden's over tp"));
  CHECK_THAT(one.likely, Catch::StartsWith("the sum goes over tp, which cuts the tensor"));
  CHECK_THAT(of_parts(sum / 3).likely, Catch::StartsWith("the mean goes over tp"));
  CHECK(of_parts(sum / 2).likely.empty());
  CHECK_THAT(of_parts(golden.narrow(0, 0, 4)).likely, !Catch::Contains("goes over tp"));
}

TEST_CASE("what a refit leaves wrong is named with its ranks", "[diagnose]") {
  const std::string name = "refit.model.layers.0.mlp.experts.down_proj";
  const Mesh tp2({{"tp", 2}});
  const at::Tensor golden = numbered({4, 6, 5}, 41);
  const auto received = [&](const at::Tensor& value) {
    std::vector<Piece> pieces(2, piece_of(value, golden, name));
    std::vector<ResultRow> rows(2, ResultRow(Outcome::kMismatch));
    for (size_t i = 0; i < 2; ++i) {
      pieces[i].rank = rows[i].rank = 4 + static_cast<int64_t>(i);
      rows[i].name = name;
      rows[i].count = golden.numel();
    }
    return explain_received(
        {tp2, Precision::kFloat64, {&rows[0], &rows[1]}, {&pieces[0], &pieces[1]}}, 4);
  };
  at::Tensor half = golden.clone();
  half.narrow(0, 0, 2).zero_();
  const Explanation empty = received(half);
  CHECK(empty.pattern ==
        "wrong only at the experts 0..1 (the part of tp 0), which are all zero on all ranks (rank "
        "0 of those that a "
        "refit reaches is rank 4)");
  CHECK(empty.likely == "one part was dropped or never filled");
  CHECK_THAT(received(golden.roll(1, 1)).pattern, Catch::Contains("in the order 5 0 1 2 3 4"));
  CHECK(received(golden + numbered({4, 6, 5}, 42)).likely.empty());
  CHECK(received(golden * 2).likely.empty());  // no sum is taken of what is sent
}
