// Every transformation that the judge can name, and near misses that must stay unexplained.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "sim/judge/evidence/explained.h"
#include "sim/judge/explain/hypotheses.h"
#include "tests/unit/judge/planted_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

const Mesh kContext({{"dp", 1}, {"cp", 3}, {"tp", 2}});

std::optional<Proposal> read_otherwise(const Piece& piece) {
  const Mesh mesh({{"tp", 1}});
  ResultRow row(Outcome::kMismatch);
  return propose_read_order(Difference({mesh, Precision::kFloat64, {&row}, {&piece}}));
}

}  // namespace

TEST_CASE("how much is explained is said, rounded down", "[explanations]") {
  CHECK(explained_text(1) == "explains all of the difference");
  CHECK(explained_text(0.99998) == "explains 99.99% of the difference");
  CHECK(explained_text(-1).empty());
}

TEST_CASE("a factor that is nearly right is claimed with its share, a rough one is not",
          "[explanations]") {
  auto precision = Precision::kFloat32;
  const auto planted = [&](double factor, double noise) {
    return found(judge::world(precision), in(kGrad, [=](int64_t rank, const at::Tensor& t) {
                   const at::Tensor more = noise * numbered({t.size(0), t.size(1)}, 90 + rank);
                   return (t * factor + more).to(t.scalar_type());
                 }));
  };
  const Divergence near = planted(2, 1e-2);
  CHECK_THAT(near.pattern, Catch::StartsWith("every element is about 2.00 x golden") &&
                               Catch::Contains("2 is the size of dp") &&
                               Catch::Contains("; explains 99.9"));
  CHECK_THAT(near.likely, Catch::Contains("summed once too often"));
  CHECK_THAT(planted(1.0 / 3, 1e-3).pattern, Catch::Contains("3 is the size of tp"));
  precision = Precision::kBFloat16;
  CHECK_THAT(planted(2, 0).pattern, Catch::Contains("2 is the size of dp"));
  CHECK(planted(2.1, 0).likely.empty());  // roundings of many elements do not move their factor
  precision = Precision::kFloat64;        // where the rest is not a rounding
  const Divergence rest = planted(2, 1e-2);
  CHECK_THAT(rest.pattern, Catch::StartsWith("every element is about 2.00 x golden") &&
                               Catch::EndsWith("what rounding may leave: not the cause alone"));
  CHECK(rest.likely.empty());
  CHECK(planted(2, 0.4).likely.empty());     // explains only 90%
  CHECK(planted(1.7, 1e-3).likely.empty());  // a factor without a meaning
  CHECK(planted(1, 1e-3).likely.empty());
}

TEST_CASE("a gradient that clipping made larger names the clipping factor", "[explanations]") {
  CaseSpec spec = spec_of(2, 3);
  spec.optimizer.max_norm = 9;  // more than the norm of 4, so that clipping changes nothing
  const JudgedWorld loose(spec, {seen("grad_norm", at::scalar_tensor(4.0, at::kDouble)),
                                 seen("exp_avg.w", numbered({6, 5}, 3))});
  const Divergence grown = found(
      loose, in("exp_avg.w", [](int64_t, const at::Tensor& t) { return t * (9 / 4.000001); }));
  CHECK_THAT(grown.pattern, Catch::Contains("max_norm / norm"));
  CHECK(grown.likely == "the clipping factor is not capped at 1");
}

TEST_CASE("a factor that is a size and the number of microbatches names both", "[explanations]") {
  const Mesh mesh({{"tp", 2}});
  ResultRow row(Outcome::kMismatch);
  row.name = "grad.w";
  row.count = 40;
  row.factor = 2;
  Symptoms symptoms{mesh, Precision::kFloat64, {&row}, {}};
  symptoms.microbatches = 2;
  const Explanation two = explain_values(symptoms);
  CHECK_THAT(two.pattern, Catch::Contains("2 is the size of tp; 2 is the number of microbatches"));
  CHECK_THAT(two.likely, Catch::Contains("once too often over that axis"));
  CHECK_THAT(two.likely, Catch::Contains("; or not divided by the number of microbatches"));
  CHECK_THAT(two.likely, !Catch::Contains("squares"));
}

TEST_CASE("a missing sum may go over several axes, and be partly right", "[explanations]") {
  const auto parts = [](double noise) {
    return in("grad.b", [=](int64_t rank, const at::Tensor& t) {
      at::Tensor sum = at::zeros_like(t);
      for (int64_t r = 0; r < 5; ++r) sum += numbered({12}, 60 + r);
      const at::Tensor own = rank < 5 ? numbered({12}, 60 + rank) : t - sum;
      return own + noise * numbered({12}, 80 + rank);
    });
  };
  const Divergence both = found(judge::world(), parts(0));
  CHECK(both.likely == "the sum over dp x tp is missing");
  CHECK_THAT(both.pattern, Catch::Contains("must be equal over dp x tp, but the ranks hold "
                                           "addends (partial)") &&
                               Catch::EndsWith("; explains all of the difference"));
  CHECK_THAT(found(judge::world(), parts(1e-2)).pattern, Catch::Contains("; explains 99.9"));
  CHECK(found(judge::world(), parts(0.5)).likely.empty());
}

TEST_CASE("what leaves a right element wrong explains nothing", "[explanations]") {
  Explained sums;
  sums.add(1e6, 1, 1e6, 1e-10);  // a flipped bit; the other elements are right
  for (int64_t i = 0; i < 33; ++i) sums.add(1, 1, 2, 1e-10);
  CHECK(sums.refuted == 33);
  CHECK(sums.share() < 0);
  const Divergence flipped = found(judge::world(), in("grad.b", [](int64_t, at::Tensor t) {
                                     t[3] = -t[3] * 0.5e8;  // the sum over copies is wrong as well
                                     return t;
                                   }));
  CHECK_THAT(flipped.pattern, !Catch::Contains("addends"));
  CHECK_THAT(flipped.likely, !Catch::Contains("missing"));
}

TEST_CASE("of claims that fit alike the shortest stands, the others follow", "[explanations]") {
  // Both dp ranks hold the same half, so a factor of 1/2 fits, and so does a missing sum over dp.
  const Divergence half =
      found(judge::world(), in("grad.b", [](int64_t, const at::Tensor& t) { return t / 2; }));
  CHECK_THAT(half.pattern, Catch::StartsWith("every element is 0.5 (1/2) x golden"));
  CHECK_THAT(half.likely, Catch::StartsWith("averaged over that axis") &&
                              Catch::EndsWith("; or the sum over dp is missing"));
  // The two addends differ, so there is no factor, and none is mentioned.
  const Divergence parts =
      found(judge::world(), in("grad.b", [](int64_t rank, const at::Tensor& t) {
              const at::Tensor part = numbered({12}, 77);
              return rank < 3 ? part : t - part;
            }));
  CHECK(parts.likely == "the sum over dp is missing");
  CHECK_THAT(parts.pattern, Catch::Contains("sum of the ranks' values over dp is the golden"));
  const Divergence mean = found(judge::world(), in("grad.b", [](int64_t rank, const at::Tensor& t) {
                                  const at::Tensor part = numbered({12}, 77);
                                  return rank < 3 ? part : 2 * t - part;
                                }));
  CHECK(mean.likely == "the mean over dp is missing");
}

TEST_CASE("a replicated parameter whose ranks hold parts is called sharded", "[explanations]") {
  const Divergence sharded =
      found(judge::world(), in("grad.b", [](int64_t rank, const at::Tensor& t) {
              at::Tensor own = at::zeros_like(t);
              own.narrow(0, 4 * (rank % 3), 4).copy_(t.narrow(0, 4 * (rank % 3), 4));
              return own;
            }));
  CHECK_THAT(sharded.pattern, Catch::Contains("must be equal over tp, but each rank holds a "
                                              "part of it and zeros (sharded)"));
}

TEST_CASE("two gradients of one name on a rank are a tie that was cut", "[explanations]") {
  const at::Tensor golden = numbered({6, 4}, 3), first = numbered({6, 4}, 7);
  const auto said = [&](double noise) {
    const Piece a = piece_of(first, golden);
    const Piece b = piece_of(golden - first + noise * numbered({6, 4}, 9), golden);
    const Mesh mesh({{"tp", 1}});
    ResultRow row(Outcome::kMismatch);
    const Symptoms symptoms{mesh, Precision::kFloat64, {&row}, {&a, &b}};
    const auto found = propose_missing_sum(Difference(symptoms));
    return found ? found->likely : "";
  };
  CHECK_THAT(said(0), Catch::Contains("a tied parameter became several"));
  CHECK(said(0.5).empty());
}

TEST_CASE("declared addends that are copies, or one too many, are named", "[explanations]") {
  const auto addends = [](const std::function<at::Tensor(int64_t, const at::Tensor&)>& f) {
    return [=](int64_t rank, Observation& seen) {
      if (seen.name != "x.output") return;
      seen.part = Part::kPartial;
      seen.partial_axes = {"tp"};
      seen.tensor = f(rank % 3, seen.tensor);
    };
  };
  const Divergence copies =
      found(judge::world(), addends([](int64_t, const at::Tensor& t) { return t.clone(); }));
  CHECK_THAT(copies.pattern,
             Catch::Contains("declared partial over tp, but each rank holds the whole value"));
  const Divergence extra = found(judge::world(), addends([](int64_t tp, const at::Tensor& t) {
                                   const at::Tensor part = numbered({4, 6}, 33);
                                   return tp == 0 ? part : tp == 1 ? t - part : part * 0.7;
                                 }));
  CHECK_THAT(extra.pattern, Catch::Contains("is the golden without the addend of ranks 2, 5"));
  const auto odd_on = [](int64_t first_right) {  // for each dp rank, a group of tp ranks
    return [=](int64_t rank, Observation& seen) {
      if (seen.name != "x.output") return;
      const at::Tensor part = numbered({4, 6}, 33 + rank / 3);
      const double odd = rank < first_right ? 0.7 : 0;
      seen.part = Part::kPartial;
      seen.partial_axes = {"tp"};
      const int64_t tp = rank % 3;
      seen.tensor = tp == 0 ? part : tp == 1 ? seen.tensor - part : part * odd;
    };
  };
  CHECK_THAT(found(judge::world(), odd_on(3)).pattern,
             Catch::Contains("without the addend of rank 2 on ranks 0, 1, 2"));
  CHECK_THAT(found(judge::world(), odd_on(6)).pattern,
             Catch::Contains("without the addend of ranks 2, 5 on all ranks"));
  const Divergence one_of_two = found(judge::world(), [&](int64_t rank, Observation& seen) {
    odd_on(6)(rank, seen);
    if (seen.name == "x.output" && rank == 3) seen.tensor = numbered({4, 6}, 90);
  });
  CHECK_THAT(one_of_two.pattern, !Catch::Contains("without"));
  const Divergence random = found(judge::world(), addends([](int64_t tp, const at::Tensor&) {
                                    return numbered({4, 6}, 40 + tp);
                                  }));
  CHECK(random.likely.empty());
}

TEST_CASE("a shift is seen although padding and dropped positions break it", "[explanations]") {
  at::Tensor golden = -1 - numbered({4, 9}, 3).abs();
  golden.select(1, 0).zero_();
  const std::vector<int64_t> lengths = {9, 6, 1, 7};
  for (int64_t i = 0; i < 4; ++i) golden[i].narrow(0, lengths[i], 9 - lengths[i]).zero_();
  const auto moved = [&](double noise) {
    at::Tensor out = at::zeros_like(golden);
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t t = 1; t < lengths[i]; ++t) {
        out[i][t] = t + 1 < lengths[i] ? golden[i][t + 1] : golden[i][t] - 1.5;
      }
    }
    return golden.ne(0) * (out + noise * numbered({4, 9}, 8));
  };
  const auto found = propose_shift(whole(moved(0), golden, true, "logprobs"), kContext);
  REQUIRE(found);
  CHECK_THAT(found->pattern, Catch::StartsWith("shifted by -1 along the positions"));
  CHECK(found->share == 1);
  CHECK_FALSE(propose_shift(whole(moved(0.5), golden, true, "logprobs"), kContext));
}

TEST_CASE("zeros beside one right copy may be a missing sum", "[explanations]") {
  const auto zero_on = [](const std::vector<int64_t>& ranks) {
    return found(judge::world(), in("grad.b", [=](int64_t rank, const at::Tensor& t) {
                   const bool is_zero = std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
                   return is_zero ? at::zeros_like(t) : t;
                 }));
  };
  const Divergence all_but_one = zero_on({0, 1, 2, 4, 5});
  CHECK_THAT(all_but_one.pattern, Catch::StartsWith("every element is 0 on ranks 0, 1, 2, 4, 5; "
                                                    "the sum of the ranks' values over dp x tp"));
  CHECK_THAT(all_but_one.likely, Catch::StartsWith("the sum over dp x tp is missing"));
  const Divergence one = zero_on({4});  // the sum of the other copies is five times the golden
  CHECK_THAT(one.pattern, !Catch::Contains("sum"));
  CHECK_THAT(one.likely, Catch::StartsWith("it was never filled"));
}

TEST_CASE("a transposition that fits only most of it is none", "[explanations]") {
  const at::Tensor golden = numbered({6, 6}, 9);
  at::Tensor actual = golden.t().contiguous();
  const auto found = propose_transposition(whole(actual, golden), kContext);
  REQUIRE(found);
  CHECK_THAT(found->pattern, Catch::Contains("dims 0 and 1 are transposed"));
  actual[2].copy_(numbered({6}, 77));
  CHECK_FALSE(propose_transposition(whole(actual, golden), kContext));
}

TEST_CASE("a roll by a few places is a shift, and no order of many chunks", "[explanations]") {
  const at::Tensor golden = numbered({3, 16, 4}, 9);
  const Assembled rolled = whole(golden.roll(1, 1), golden, true);
  CHECK_FALSE(propose_chunk_order(rolled, kContext));
  const auto found = propose_shift(rolled, kContext);
  REQUIRE(found);
  CHECK(found->parameters == std::vector<double>{1, 1});  // dim, places
}

TEST_CASE("memory read in the other order is recognised in a rank's own part", "[explanations]") {
  const at::Tensor golden = numbered({2, 3, 5}, 12);
  const Piece strided = piece_of(golden.transpose(1, 2).contiguous().view({2, 3, 5}), golden);
  const auto found = read_otherwise(strided);
  REQUIRE(found);
  CHECK_THAT(found->pattern, Catch::Contains("along dims 1 and 2 read in the other order"));
  at::Tensor half = golden.transpose(1, 2).contiguous().view({2, 3, 5}).clone();
  half[1].copy_(numbered({3, 5}, 5));
  const Piece broken = piece_of(half, golden);
  CHECK_FALSE(read_otherwise(broken));
}

TEST_CASE("a factor of its own per sample is a local normalisation", "[explanations]") {
  const at::Tensor golden = numbered({3, 4, 5}, 6);
  const at::Tensor factors = at::tensor({0.5, 1.0, 1.25}, at::kDouble).view({3, 1, 1});
  const auto found = propose_sample_factors(whole(golden * factors, golden, true), kContext);
  REQUIRE(found);
  CHECK_THAT(found->pattern, Catch::Contains("0.5, 1, 1.25"));
  CHECK(found->share == 1);
  at::Tensor one_off = golden * factors;
  one_off[2].copy_(numbered({4, 5}, 70));
  CHECK_FALSE(propose_sample_factors(whole(one_off, golden, true), kContext));
  CHECK_FALSE(
      propose_sample_factors(whole(golden * 2, golden, true), kContext));  // one factor for all
  CHECK_FALSE(propose_sample_factors(whole(golden * factors, golden, false), kContext));
}

TEST_CASE("one vector added to every row is a constant, noise is not", "[explanations]") {
  const at::Tensor golden = numbered({3, 7, 4}, 6);
  const auto found = propose_offset(whole(golden + numbered({4}, 2), golden, true), kContext);
  REQUIRE(found);
  CHECK_THAT(found->pattern, Catch::Contains("one vector of 4, the same on all 21 rows"));
  CHECK(found->share == 1);
  const at::Tensor rough = golden + numbered({4}, 2) + 0.3 * numbered({3, 7, 4}, 8);
  CHECK_FALSE(propose_offset(whole(rough, golden, true), kContext));
  CHECK_FALSE(propose_offset(whole(numbered({3, 7, 4}, 8), golden, true), kContext));
}

TEST_CASE("what is wrong in a part may be stale, and says whose part it is", "[explanations]") {
  const at::Tensor before = numbered({6, 4}, 8), after = numbered({6, 4}, 9);
  const JudgedWorld judged(spec_of(1, 3), {seen("param.a", before, Phase::kStep, 1),
                                           seen("param.a", after, Phase::kStep, 2)});
  const auto with = [&](const at::Tensor& part) {
    return found(judged, [=](int64_t, Observation& seen) {
      if (seen.step != 2) return;
      seen.tensor = seen.tensor.clone();
      seen.tensor.narrow(0, 2, 2).copy_(part);
    });
  };
  CHECK_THAT(with(before.narrow(0, 2, 2)).pattern,
             Catch::Contains("equals the golden of step 1 wherever it is wrong"));
  at::Tensor mixed = before.narrow(0, 2, 2).clone();
  mixed[1][3] += 0.1;
  CHECK_THAT(with(mixed).pattern, !Catch::Contains("stale"));
  CHECK_THAT(with(at::zeros({2, 4}, at::kDouble)).pattern,
             Catch::Contains("dim 0 2..3 (the part of tp 1), which are all zero"));
}

TEST_CASE("what is right needs no explanation", "[explanations]") {
  const std::vector<int64_t> shape =
      GENERATE(std::vector<int64_t>{6, 6}, std::vector<int64_t>{12}, std::vector<int64_t>{3, 4, 6});
  const at::Tensor golden =
      GENERATE(true, false) ? numbered(shape, 3) : at::ones(shape, at::kDouble);
  const at::Tensor nearly = golden + 1e-11 * numbered(shape, 4);
  for (const bool tokens : {false, true}) {
    if (tokens && shape.size() < 2) continue;
    const Assembled clean = whole(nearly, golden, tokens);
    CHECK_FALSE(propose_shift(clean, kContext));
    CHECK_FALSE(propose_transposition(clean, kContext));
    CHECK_FALSE(propose_chunk_order(clean, kContext));
    CHECK_FALSE(propose_sample_factors(clean, kContext));
    CHECK_FALSE(propose_offset(clean, kContext));
    CHECK_FALSE(propose_mask_shift(clean, kContext));
    CHECK_FALSE(propose_where(clean, kContext));
  }
  const Piece piece = piece_of(nearly, golden);
  CHECK_FALSE(read_otherwise(piece));
  CHECK(judge::world().run().verdict == Verdict::kMatch);
}

TEST_CASE("smooth values and wide allowances make no shift", "[explanations]") {
  const at::Tensor golden = (at::arange(600, at::kDouble) / 40).sin().view({3, 200}).unsqueeze(2) +
                            0.01 * numbered({3, 200, 4}, 3);
  Piece piece = piece_of(golden + 0.08 * numbered({3, 200, 4}, 4), golden);
  piece.allowance = 0.03;  // as in bfloat16; neighbors differ by at most four of them
  Assembled rough = *assemble({&piece});
  rough.token_dims = true;
  CHECK_FALSE(propose_shift(rough, kContext));
  CHECK_FALSE(propose_chunk_order(rough, kContext));
  CHECK_FALSE(propose_sample_factors(rough, kContext));
}

TEST_CASE("random differences get no cause", "[explanations]") {
  const auto precision = GENERATE(Precision::kFloat64, Precision::kFloat32, Precision::kBFloat16);
  const int64_t seed = GENERATE(range(100, 112));
  const double size = GENERATE(1.0, 0.1);
  const std::string tensor = GENERATE(std::string(kGrad), "grad.b", "x.output");
  const auto plant = [&](bool replaced, bool per_rank) {
    return in(tensor, [=](int64_t rank, const at::Tensor& t) {
      const at::Tensor noise = size * numbered(t.sizes().vec(), per_rank ? seed + rank : seed);
      return replaced ? noise.to(t.scalar_type()) : (t + noise).to(t.scalar_type());
    });
  };
  for (const bool replaced : {false, true}) {
    for (const bool per_rank : {false, true}) {
      const CaseResult result = judge::world(precision).run(plant(replaced, per_rank));
      REQUIRE(result.divergence);
      CAPTURE(precision, seed, size, tensor, replaced, per_rank, result.divergence->pattern);
      const std::string likely = result.divergence->likely;
      const bool rounding = precision == Precision::kBFloat16 && likely.starts_with("rounding, if");
      CHECK((likely.empty() || rounding));  // an error that is small enough may be rounding
      CHECK_THAT(result.divergence->pattern, !Catch::Contains("explains"));
    }
  }
}
