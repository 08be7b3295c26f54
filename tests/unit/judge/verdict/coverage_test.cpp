// Each way in which a comparison can be left out prevents a match.
#include "sim/judge/verdict/coverage.h"

#include <catch2/catch.hpp>
#include <limits>

#include "tests/unit/judge/planted_world.h"

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

const CaseSpec kTwoRanks = spec_of(2, 1);

// Reports of two ranks that hold grad.a and grad.b whole and have compared them.
std::vector<RankReport> reports_of_two() {
  const JudgedWorld judged(kTwoRanks,
                           {seen("grad.a", numbered({6})), seen("grad.b", numbered({6}, 2))});
  std::vector<RankReport> reports;
  for (const RankEnding& ending : judged.endings()) {
    reports.push_back(decode_rank_report(ending.bytes));
  }
  return reports;
}

CaseResult verdict_of(const std::vector<RankReport>& reports, const CaseSpec& spec = kTwoRanks) {
  std::vector<RankEnding> endings;
  for (const RankReport& report : reports) endings.push_back(finished(report.rank, report));
  return judge::judge(spec, endings);
}

using Change = std::function<void(ResultRow&)>;

CaseResult with_row_of_rank_1(const Change& change) {
  std::vector<RankReport> reports = reports_of_two();
  change(reports[1].rows[1]);
  return verdict_of(reports);
}

void check_not_judged(const CaseResult& result, const std::string& reason) {
  CAPTURE(reason, result.message);
  CHECK(result.verdict == Verdict::kInternal);
  CHECK(result.kind == ResultKind::kNotJudged);
  CHECK_FALSE(result.as_expected);
  CHECK(exit_status({result}) == 5);
  REQUIRE(result.account.not_judged.size() == 1);
  CHECK_THAT(result.account.not_judged[0].reason, Catch::Contains(reason));
  CHECK_THAT(result.message, Catch::Contains(reason));
}

}  // namespace

TEST_CASE("a case of which everything was compared matches", "[coverage]") {
  const CaseResult result = verdict_of(reports_of_two());
  CHECK(result.verdict == Verdict::kMatch);
  CHECK(result.account.elements.demanded == 24);
  CHECK(result.account.elements.judged == 24);
  CHECK(result.account.elements.left_out() == 0);
}

TEST_CASE("a row that nothing compared is not judged, with tensor, count and reason",
          "[coverage]") {
  const CaseResult result = with_row_of_rank_1([](ResultRow& row) {
    row.outcome = Outcome::kNotJudged;
    row.judged = 0;
    row.reason = "its addends do not fit";
  });
  check_not_judged(result, "its addends do not fit");
  CHECK(result.message ==
        "1 of 2 tensors were not judged; the first: 6 elements of grad.b of step 1, because its "
        "addends do not fit");
  CHECK(result.account.not_judged[0].tensor == "grad.b");
  CHECK(result.account.not_judged[0].elements == 6);
  CHECK(result.elements_compared == 18);
}

TEST_CASE("an element that was neither compared nor excused is not judged", "[coverage]") {
  const CaseResult result = with_row_of_rank_1([](ResultRow& row) { row.judged = 5; });
  CHECK(result.verdict == Verdict::kInternal);
  CHECK(result.account.not_judged.at(0).elements == 1);
}

TEST_CASE("an addend whose values did not come, or that nobody summed, is not judged",
          "[coverage]") {
  const auto partial = [](ResultRow& row) {
    row.partial = true;
    row.partial_axes = {"dp"};
    row.outcome = Outcome::kAddend;
    row.judged = 0;
  };
  std::vector<RankReport> reports = reports_of_two();
  for (RankReport& report : reports) partial(report.rows[1]);
  check_not_judged(verdict_of(reports), "2 of its 2 addends came without their values");
  reports = reports_of_two();
  for (RankReport& report : reports) {
    partial(report.rows[1]);
    report.rows[1].partial = false;  // there will be no sum
  }
  CHECK(verdict_of(reports).verdict == Verdict::kInternal);
}

TEST_CASE("a rank that observed without a golden judged nothing", "[coverage]") {
  std::vector<RankReport> reports = reports_of_two();
  RankRecorder recorder(kTwoRanks, kTwoRanks.parallel.mesh(), 1, nullptr, {});
  recorder.observe(seen("grad.a", numbered({6})));
  reports[1] = recorder.finish();
  const CaseResult result = verdict_of(reports);
  CHECK(result.verdict != Verdict::kMatch);
  REQUIRE(result.account.not_judged.size() == 1);
  CHECK(result.account.not_judged[0].reason == "the rank had no golden");
}

TEST_CASE("a rank that sent no report is not judged", "[coverage]") {
  std::vector<RankReport> reports = reports_of_two();
  reports.pop_back();
  check_not_judged(verdict_of(reports), "rank 1 sent no report");
}

TEST_CASE("a tensor of which every rank holds padding alone is not judged", "[coverage]") {
  const CaseSpec spec = spec_of(2, 1);
  const auto golden = golden_from({seen("x.output", numbered({1, 2, 2}), Phase::kForward)});
  std::vector<RankReport> reports;
  for (int64_t rank = 0; rank < 2; ++rank) {
    Observation dummy = seen("x.output", numbered({1, 2, 2}, 90 + rank), Phase::kForward);
    dummy.token_map = at::full({1, 2}, -1, at::kLong);
    reports.push_back(observe_all(spec, golden, {dummy}, rank));
  }
  const CaseResult result = verdict_of(reports, spec);
  check_not_judged(result, "no rank holds an element of it");
  CHECK(result.account.not_judged[0].elements == 4);
}

TEST_CASE("an allowance that is not finite judges nothing", "[coverage]") {
  const CaseSpec spec = spec_of(1, 1);
  JudgedWorld world(spec, {seen("grad.a", numbered({6}))});
  GoldenRecord golden = world.golden();
  const_cast<GoldenTensor&>(golden.tensors()[0]).phase_scale =
      std::numeric_limits<double>::infinity();
  const RankReport report = observe_all(spec, golden, {seen("grad.a", numbered({6}, 5))});
  check_not_judged(verdict_of({report}, spec), "its allowance is inf");
}

TEST_CASE("state of steps that only some correct runs skip is unresolved", "[coverage]") {
  const CaseSpec spec = spec_of(1, 1, Precision::kFloat16);
  const Observation right = seen("grad.a", numbered({6}));
  JudgedWorld world(spec, {seen("exp_avg.a", numbered({6}), Phase::kStep), right});
  GoldenRecord golden = world.golden();
  for (const GoldenTensor& tensor : golden.tensors()) {
    if (tensor.name == "exp_avg.a") {
      const_cast<GoldenTensor&>(tensor).scatter = std::numeric_limits<double>::infinity();
    }
  }
  const Observation other = seen("exp_avg.a", numbered({6}, 5), Phase::kStep);
  const CaseResult result = verdict_of({observe_all(spec, golden, {other, right})}, spec);
  CHECK(result.verdict == Verdict::kMatch);
  REQUIRE(result.account.unresolved.size() == 1);
  CHECK(result.account.unresolved[0].tensor == "exp_avg.a");
}

TEST_CASE("a case in which nothing can be judged is refused", "[coverage]") {
  const CaseSpec spec = spec_of(1, 1, Precision::kFloat16);
  JudgedWorld world(spec, {seen("exp_avg.a", numbered({6}), Phase::kStep)});
  GoldenRecord golden = world.golden();
  const_cast<GoldenTensor&>(golden.tensors()[0]).scatter = std::numeric_limits<double>::infinity();
  const CaseResult result = verdict_of(
      {observe_all(spec, golden, {seen("exp_avg.a", numbered({6}, 5), Phase::kStep)})}, spec);
  CHECK(result.verdict == Verdict::kRefused);
  CHECK(result.kind == ResultKind::kUnresolved);
  CHECK_THAT(result.message, Catch::Contains("no value could be judged: "));
}

TEST_CASE("padding and what the case does not record are excused, and counted", "[coverage]") {
  const at::Tensor full = numbered({2, 2, 2});
  CaseSpec spec = spec_of(1, 1);
  const auto golden = golden_from({seen("logprobs", full, Phase::kForward),
                                   seen("x.grad_input", numbered({5}), Phase::kBackward)});
  spec.record_activations = false;
  Observation padded = seen("logprobs", at::cat({full, full.narrow(0, 0, 1)}), Phase::kForward);
  padded.token_map = at::tensor({0, 1, 2, 3, -1, -1}, at::kLong).view({3, 2});
  const RankReport report = observe_all(spec, golden, {padded});
  const CaseResult result = verdict_of({report}, spec);
  CHECK(result.verdict == Verdict::kMatch);
  CHECK(result.account.elements.demanded == 12 + 5);
  CHECK(result.account.elements.judged == 8);
  CHECK(result.account.elements.excused.at(Excuse::kPadding) == 4);
  CHECK(result.account.elements.excused.at(Excuse::kNotRecorded) == 5);
}

TEST_CASE("what excuses a rank does not hold where another of its stage has observed it",
          "[coverage]") {
  using enum Excuse;
  CaseSpec stages = spec_of(2, 1);
  stages.parallel = {};
  stages.parallel.pp = 2;
  for (const Excuse excuse : {kElsewhere, kUnresolved}) {
    for (const CaseSpec& spec : {kTwoRanks, stages}) {
      std::vector<RankReport> reports = reports_of_two();
      for (RankReport& report : reports) report.holds = Holds::kEverything;
      const ResultRow row = reports[1].rows[1];
      reports[1].rows.pop_back();
      reports[1].unobserved.push_back(
          {row.order, row.phase, row.step, row.kind, row.name, row.global_shape, excuse});
      const CaseResult result = verdict_of(reports, spec);
      CAPTURE(static_cast<int>(excuse), spec.parallel.pp, result.message);
      if (spec.parallel.pp == 2) {  // the other stage
        CHECK(result.verdict == Verdict::kMatch);
        continue;
      }
      CHECK(result.kind == ResultKind::kMissing);
      REQUIRE(result.divergence);
      CHECK(result.divergence->tensor == "grad.b");
      CHECK(result.divergence->ranks == std::vector<int64_t>{1});
    }
  }
}

TEST_CASE("a mismatch is a mismatch, whatever was not judged beside it", "[coverage]") {
  std::vector<RankReport> reports = reports_of_two();
  reports[0].rows[0].outcome = Outcome::kMismatch;
  reports[0].rows[0].bad_count = 1;
  reports[1].rows[1].outcome = Outcome::kNotJudged;
  reports[1].rows[1].judged = 0;
  const CaseResult result = verdict_of(reports);
  CHECK(result.verdict == Verdict::kMismatch);
  CHECK(result.account.not_judged.size() == 1);
}

TEST_CASE("an unresolved tensor leaves a match, which says so and counts it", "[coverage]") {
  std::vector<RankReport> reports = reports_of_two();
  CaseSpec spec = kTwoRanks;
  spec.precision = Precision::kFloat16;
  for (RankReport& report : reports) {
    report.rows[1].outcome = Outcome::kUnresolved;
    report.rows[1].judged = 0;
    report.rows[1].reason = "rounding is 0.7 of its update";
  }
  const CaseResult result = verdict_of(reports, spec);
  CHECK(result.verdict == Verdict::kMatch);
  CHECK(result.as_expected);
  REQUIRE(result.account.unresolved.size() == 1);
  CHECK(result.account.unresolved[0].tensor == "grad.b");
  CHECK(result.account.elements.excused.at(Excuse::kUnresolved) == 12);
  CHECK(result.tensors_compared == 1);
  CHECK_THAT(describe_result(result, false),
             Catch::Contains("1 of 2 tensors not resolvable in float16 (first: grad.b of step 1)"));
  CHECK(exit_status({result}) == 0);
  CHECK(exit_status({result}, true) == 1);
  CHECK(exit_status({verdict_of(reports_of_two())}, true) == 0);
}

TEST_CASE("a match says what it rests on, and that of zeros with zeros is bad input",
          "[coverage]") {
  const at::Tensor zeros = at::zeros({6}, at::kDouble);
  const auto run = [](const at::Tensor& loss, const at::Tensor& a, const at::Tensor& b,
                      const CaseSpec& spec = kTwoRanks) {
    return JudgedWorld(spec, {seen("loss", loss, Phase::kForward), seen("grad.a", a),
                              seen("grad.b", b), seen("param.a", numbered({6}, 3))})
        .run();
  };
  const CaseResult half = run(zeros[0], numbered({6}), zeros);
  CHECK(half.verdict == Verdict::kMatch);
  CHECK(half.account.grounds.gradients == 2);
  CHECK(half.account.grounds.gradients_not_zero == 1);
  CHECK(grounds_text(half.account.grounds) == "1 of 2 gradients not all zero");

  const CaseResult none = run(zeros[0], zeros, zeros);
  CHECK(none.verdict == Verdict::kBadInput);
  CHECK_FALSE(none.as_expected);
  CHECK(exit_status({none}) == 2);
  CHECK_THAT(none.message,
             Catch::StartsWith("no token counts: the loss and all 2 gradients are 0"));

  const CaseResult constant = run(numbered({1})[0] + 1, zeros, zeros);
  CHECK(constant.verdict == Verdict::kBadInput);
  CHECK_THAT(constant.message, Catch::StartsWith("all 2 gradients are 0") &&
                                   Catch::Contains("let the loss depend on the parameters"));

  CaseSpec meant = kTwoRanks;
  meant.expect.nothing_counted = true;
  CHECK(run(zeros[0], zeros, zeros, meant).as_expected);
  const CaseResult other = run(zeros[0], numbered({6}), zeros, meant);
  CHECK(other.verdict == Verdict::kMatch);
  CHECK_FALSE(other.as_expected);
}
