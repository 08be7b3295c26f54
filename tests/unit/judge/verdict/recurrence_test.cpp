#include "sim/judge/verdict/recurrence.h"

#include <catch2/catch.hpp>
#include <limits>

using namespace shardproof;
using namespace shardproof::sim;
using namespace shardproof::sim::judge;

namespace {

// A run of two ranks in which rank 1 holds a wrong gradient of this error.
CaseResult mismatch(double error) {
  CaseResult result;
  result.verdict = Verdict::kMismatch;
  result.kind = ResultKind::kValues;
  for (int64_t rank = 0; rank < 2; ++rank) {
    ResultRow row(rank == 0 ? Outcome::kMatch : Outcome::kMismatch);
    row.name = "grad.w";
    row.rank = rank;
    row.digest = 7;
    row.allowance = 1;
    row.worst_error = rank == 0 ? 0 : error;
    RankReport report;
    report.rank = rank;
    report.rows = {row};
    result.reports.push_back(report);
  }
  return result;
}

// The second run of it: all ranks right, with this allowance.
CaseResult match(double allowance, uint64_t digest) {
  CaseResult result = mismatch(0);
  result.verdict = Verdict::kMatch;
  for (RankReport& report : result.reports) {
    report.rows[0].outcome = Outcome::kMatch;
    report.rows[0].allowance = allowance;
    report.rows[0].digest = digest;
  }
  for (RankReport& report : result.reports) report = decode_rank_report(encode(report));
  return result;
}

CaseResult ended(Verdict verdict, ResultKind kind) {
  CaseResult result;
  result.verdict = verdict;
  result.kind = kind;
  return result;
}

}  // namespace

TEST_CASE("more members of a golden may explain wrong values alone", "[verdict]") {
  CHECK(is_open(ended(Verdict::kMismatch, ResultKind::kValues)));
  CHECK(is_open(ended(Verdict::kMismatch, ResultKind::kMetrics)));
  CHECK(is_open(ended(Verdict::kMatch, ResultKind::kNone)));  // not as expected
  for (const auto kind : {ResultKind::kReplicas, ResultKind::kDigest, ResultKind::kMissing}) {
    CHECK_FALSE(is_open(ended(Verdict::kMismatch, kind)));
  }
  for (const auto kind : {ResultKind::kDied, ResultKind::kHung, ResultKind::kThrew}) {
    CHECK_FALSE(is_open(ended(Verdict::kFailed, kind)));
  }
  CHECK_FALSE(is_open(ended(Verdict::kInternal, ResultKind::kNotJudged)));
  CHECK_FALSE(is_open(ended(Verdict::kRefused, ResultKind::kUnresolved)));
}

TEST_CASE("a second run explains equal bytes and errors within its allowance", "[verdict]") {
  CHECK(explains(match(1, 7), mismatch(5)));  // the same bytes, by other means than the allowance
  CHECK(explains(match(5, 8), mismatch(5)));
  CHECK_FALSE(explains(match(4, 8), mismatch(5)));
  CHECK_FALSE(explains(match(5, 8), mismatch(std::numeric_limits<double>::quiet_NaN())));
}

TEST_CASE("a second run explains no problem, addend or absence by an allowance", "[verdict]") {
  const CaseResult later = match(5, 8);
  CaseResult first = mismatch(5);
  first.reports[1].rows[0].problem = "wrong shape";
  CHECK_FALSE(explains(later, first));
  first.reports[1].rows[0].problem.clear();
  first.reports[0].rows[0].partial = true;  // the right addend of a wrong sum
  CHECK_FALSE(explains(later, first));
  CaseResult absent = later;
  absent.reports[1].rows.clear();
  CHECK_FALSE(explains(absent, mismatch(5)));
}

TEST_CASE("a mismatch that does not recur says so", "[verdict]") {
  CaseResult first = mismatch(5);
  first.message = "grad.w of step 1: 3 of 4 elements";
  first.divergence.emplace();
  first.divergence->likely = "a missing sum";
  does_not_recur(first);
  CHECK_THAT(first.message, Catch::StartsWith("grad.w of step 1: 3 of 4 elements; a second run"));
  CHECK_THAT(first.divergence->likely, Catch::StartsWith("a second run of the case"));
  CHECK_THAT(first.divergence->likely, Catch::EndsWith("without that, a missing sum"));
}
