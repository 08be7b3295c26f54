// Evidence of wrong ranks: values of another step or of a narrower dtype.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "sim/judge/explain/diagnose.h"
#include "tests/unit/judge/planted_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

TEST_CASE("values of a narrow dtype are rounding only when they lie near the golden",
          "[explanations]") {
  const auto rounded = [](const at::Tensor& values, at::ScalarType through = at::kBFloat16) {
    return found(judge::world(), in("grad.b", [=](int64_t, const at::Tensor&) {
                   return values.to(through).to(at::kDouble);
                 }));
  };
  CHECK_THAT(rounded(numbered({12}, 5), at::kFloat).pattern, Catch::Contains("exactly a float32"));
  CHECK_THAT(rounded(numbered({12}, 5)).pattern, Catch::Contains("exactly a bfloat16"));
  CHECK_THAT(rounded(numbered({12}, 71)).pattern, !Catch::Contains("bfloat16"));
  const Divergence in_float32 =
      found(judge::world(Precision::kFloat32), in("grad.b", [](int64_t, const at::Tensor& t) {
              return t.to(at::kBFloat16).to(at::kFloat);
            }));
  CHECK_THAT(in_float32.pattern, Catch::Contains("exactly a bfloat16"));
}

TEST_CASE("values are not called narrow for the dtype of their own tensor", "[explanations]") {
  const auto doubled = [](at::ScalarType own) {
    return found(judge::world(Precision::kFloat16), in("grad.b",
                                                       [=](int64_t, const at::Tensor& t) {
                                                         at::Tensor wrong = t.to(at::kHalf);
                                                         wrong.view(-1)[0] +=
                                                             0.02 * at::norm(t).item<double>();
                                                         return wrong.to(own);
                                                       }))
        .pattern;
  };
  CHECK_THAT(doubled(at::kHalf), !Catch::Contains("exactly a float16"));
  CHECK_THAT(doubled(at::kFloat), Catch::Contains("exactly a float16"));
}

TEST_CASE("a mean of narrow values is no narrow value, and tells of them all the same",
          "[explanations]") {
  const at::Tensor a = numbered({40}, 5), b = numbered({40}, 6);
  const JudgedWorld judged(spec_of(1, 2), {seen("grad.g", (a + b) / 2)});
  const auto through = [&](at::ScalarType dtype) {
    const at::Tensor mean = (a.to(dtype).to(at::kDouble) + b.to(dtype).to(at::kDouble)) / 2;
    return found(judged, in("grad.g", [=](int64_t, const at::Tensor&) { return mean; })).pattern;
  };
  CHECK_THAT(through(at::kBFloat16), Catch::Contains("its addends went through bfloat16"));
  CHECK_THAT(through(at::kHalf), Catch::Contains("its addends went through float16"));
  CHECK_THAT(through(at::kFloat), !Catch::Contains("went through"));
}

TEST_CASE("float32 values from before an update are no sums of narrow ones", "[explanations]") {
  const at::Tensor stored = numbered({40}, 5).to(at::kFloat).to(at::kDouble);
  for (const double update : {1e-3, 1e-4}) {
    const JudgedWorld judged(spec_of(1, 2), {seen("grad.g", stored + update * numbered({40}, 6))});
    const Divergence stale =
        found(judged, in("grad.g", [=](int64_t, const at::Tensor&) { return stored; }));
    CHECK_THAT(stale.pattern + stale.likely, !Catch::Contains("float16"));
  }
}

TEST_CASE("logprobs of a bfloat16 run are due in float32", "[explanations]") {
  at::Tensor logprobs = -1 - numbered({3, 7}).abs();
  logprobs.select(1, 0).zero_();
  const auto verdict = [&](at::ScalarType through) {
    JudgedWorld judged(spec_of(1, 2, Precision::kBFloat16),
                       {seen("logprobs", logprobs, Phase::kForward)});
    return judged.run(
        in("logprobs", [=](int64_t, const at::Tensor& t) { return t.to(through).to(at::kFloat); }));
  };
  CHECK(verdict(at::kFloat).verdict == Verdict::kMatch);
  const CaseResult narrow = verdict(at::kBFloat16);
  CHECK(narrow.verdict == Verdict::kMismatch);
  REQUIRE(narrow.divergence);
  CHECK_THAT(narrow.divergence->pattern, Catch::Contains("rounded through a narrower dtype"));
}

TEST_CASE("float32 values that are off as bfloat16 rounds were computed in it", "[explanations]") {
  const at::Tensor logprobs = -1 - 4 * numbered({3, 7}).abs();
  const auto off_by = [&](const at::Tensor& errors) {
    Piece piece = piece_of(logprobs + errors, logprobs, "logprobs");
    piece.allowance = 1e-6;  // an allowance of float32
    ResultRow row(Outcome::kMismatch);
    row.kind = piece.kind;
    row.name = piece.name;
    row.rounding_only = true;
    row.count = row.bad_count = logprobs.numel();
    row.worst_error = errors.abs().max().item<double>();
    row.worst_ratio = row.worst_error / piece.allowance;
    row.golden_scale = logprobs.abs().max().item<double>();
    row.factor_residual = 1;
    return explain_values({Mesh({{"tp", 2}}), Precision::kBFloat16, {&row}, {&piece}}).likely;
  };
  // Logarithms of rounded sums are not bfloat16 numbers, but their errors have bfloat16's size.
  const at::Tensor sums = 3 + 2 * numbered({3, 7}, 8);
  const at::Tensor of_sums = sums.to(at::kBFloat16).to(at::kDouble).log() - sums.log();
  CHECK_THAT(off_by(of_sums), Catch::Contains("off by as much as bfloat16 rounds"));
  CHECK(off_by(of_sums.abs()).empty());  // one-sided
  CHECK(off_by(100 * of_sums).empty());
  CHECK(off_by(of_sums / 100).empty());
}

TEST_CASE("a learning rate that is ahead of its schedule is the golden's next one",
          "[explanations]") {
  const auto rate = [](int64_t step, double value) {
    return seen("lr", at::scalar_tensor(value, at::kDouble), Phase::kStep, step);
  };
  const auto number = [](int64_t step, double value) {
    return seen("metric.size", at::scalar_tensor(value, at::kDouble), Phase::kStep, step);
  };
  const JudgedWorld judged(spec_of(2, 1), {rate(1, 0.25), rate(2, 0.25), rate(6, 0.5), rate(7, 1.0),
                                           number(2, 3.0), number(6, 6.0)});
  const auto at_step = [&](int64_t step, const std::string& name, double value) {
    return found(judged,
                 [=](int64_t, Observation& seen) {
                   if (seen.name == name && seen.step == step) {
                     seen.tensor = seen.tensor * 0 + value;
                   }
                 })
        .pattern;
  };
  CHECK_THAT(at_step(2, "lr", 0.5),
             Catch::StartsWith("equals the golden of step 6: it was advanced too early"));
  // Steps of one rate lie between the two.
  CHECK_THAT(at_step(1, "lr", 0.5),
             Catch::StartsWith("equals the golden of step 6: it was advanced"));
  CHECK_THAT(at_step(2, "lr", 1.0), !Catch::Contains("advanced"));  // of the next one but one
  CHECK_THAT(at_step(2, "metric.size", 6.0), Catch::Contains("2 is the size of dp"));
}

TEST_CASE("a tensor that is ahead by a step is told from a stale one", "[explanations]") {
  const JudgedWorld judged(spec_of(1, 2), {seen("param.w", numbered({12}, 1), Phase::kStep, 1),
                                           seen("param.w", numbered({12}, 2), Phase::kStep, 2),
                                           seen("param.w", numbered({12}, 3), Phase::kStep, 3)});
  const auto with = [&](int64_t seed) {
    return found(judged,
                 [=](int64_t, Observation& seen) {
                   if (seen.step == 2) seen.tensor = numbered({12}, seed);
                 })
        .pattern;
  };
  CHECK_THAT(with(1), Catch::Contains("equals the golden of step 1: stale"));
  CHECK_THAT(with(3), Catch::Contains("equals the golden of step 3: it was advanced too early"));
}

TEST_CASE("what one rank found out is claimed of that rank alone", "[explanations]") {
  const at::Tensor before = numbered({12}, 1), now = numbered({12}, 2);
  const JudgedWorld judged(spec_of(1, 3), {seen("param.w", before, Phase::kStep, 1),
                                           seen("param.w", now, Phase::kStep, 2)});
  const auto stale_on = [&](int64_t first_right) {
    return found(judged, [=](int64_t rank, Observation& seen) {
      if (seen.step != 2) return;
      seen.tensor = rank < first_right ? before.clone() : numbered({12}, 40 + rank);
    });
  };
  CHECK_THAT(
      stale_on(3).pattern,
      Catch::Contains("equals the golden of step 1: stale, it was not updated on all ranks"));
  const Divergence one = stale_on(1);
  CHECK(one.ranks == std::vector<int64_t>{0, 1, 2});
  CHECK_THAT(one.pattern, Catch::Contains("stale, it was not updated on rank 0 only") &&
                              Catch::Contains("the other wrong ranks are wrong in another way"));
}

TEST_CASE("a problem is claimed of the ranks that have it", "[explanations]") {
  const Divergence narrow =
      found(judge::world(), in("x.output", [](int64_t rank, const at::Tensor& t) {
              return rank == 1 ? t.to(at::kFloat) : t * 3;
            }));
  CHECK(narrow.ranks.size() == 6);
  CHECK_THAT(narrow.pattern, Catch::StartsWith("float32 tensor in a float64 run on rank 1 only; "
                                               "the other wrong ranks"));
}

TEST_CASE("elements that are right refute a missing sum", "[explanations]") {
  const auto flipped = [](double value) {
    return found(judge::world(), in("grad.b", [=](int64_t rank, at::Tensor t) {
                   // The sum with the other copy is right at this element only.
                   const double golden = t[3].item<double>();
                   t[3] = rank < 3 ? value : golden - value;
                   return t;
                 }));
  };
  for (const double value : {0.75, 1e6}) {
    const Divergence one = flipped(value);
    CHECK_THAT(one.pattern, !Catch::Contains("sum of the ranks' values"));
    CHECK(one.likely.empty());
  }
}

TEST_CASE("in a low precision a step that rounding cannot tell from this one is no evidence",
          "[explanations]") {
  const at::Tensor before = numbered({40}, 1);
  const double scale = before.abs().max().item<double>();
  const double allowance = 4 * 0.0009765625 * scale;  // of float16 without a measured error
  const auto pattern = [&](double update) {
    const at::Tensor now = before + update * allowance * numbered({40}, 2).sign();
    const JudgedWorld judged(
        spec_of(1, 2, Precision::kFloat16),
        {seen("x.output", before, Phase::kForward, 1), seen("x.output", now, Phase::kForward, 2)});
    return found(judged,
                 [=](int64_t, Observation& seen) {
                   if (seen.step == 2) seen.tensor = before.clone();
                 })
        .pattern;
  };
  CHECK_THAT(pattern(1.5), !Catch::Contains("equals the golden of step 1"));
  CHECK_THAT(pattern(5), Catch::Contains("equals the golden of step 1: stale"));
}

TEST_CASE("rounding is mentioned only beside an error that could be rounding", "[explanations]") {
  const auto told = [](double factor) {
    return describe_result(
        judge::world(Precision::kFloat16)
            .run(in(kGrad, [=](int64_t, const at::Tensor& t) { return t * factor; })),
        false);
  };
  CHECK_THAT(told(1.01), Catch::Contains("if the same case matches in float64, this is rounding"));
  CHECK_THAT(told(1000), !Catch::Contains("this is rounding"));
}
