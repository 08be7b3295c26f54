// Results of one case under several schedules: equal to the bit, or a race with both schedules.
#include "sim/judge/verdict/schedules.h"

#include <catch2/catch.hpp>

namespace shardproof::tests {
namespace {

using namespace sim;
using namespace sim::judge;
using Catch::Matchers::Contains;

CaseSpec named(const std::string& name, Backend backend = Backend::kEmulated) {
  CaseSpec spec;
  spec.name = name;
  spec.world.backend = backend;
  return spec;
}

ResultRow row_of(const char* name, int64_t step, uint64_t digest, int64_t calls_before) {
  ResultRow row(Outcome::kMatch);
  row.name = name;
  row.step = step;
  row.digest = digest;
  row.calls_before = calls_before;
  return row;
}

// Two ranks that matched; the digests are of rank 1's three values.
CaseResult matched(const std::string& name, int64_t schedule, std::vector<uint64_t> digests) {
  CaseResult result;
  result.spec = named(name);
  result.spec.world.schedule = schedule;
  result.verdict = Verdict::kMatch;
  result.as_expected = true;
  for (int64_t rank = 0; rank < 2; ++rank) {
    RankEnding ending;
    ending.rank = rank;
    ending.kind = ResultKind::kFinished;
    result.endings.push_back(ending);
    RankReport report;
    report.rank = rank;
    report.calls = {"all_gather tp 'first'", "all_reduce tp 'second'", "barrier tp 'third'"};
    const auto digest = [&](size_t place) { return rank == 0 ? 5 : digests[place]; };
    report.rows = {row_of("a", 1, digest(0), 1), row_of("b", 1, digest(1), 3),
                   row_of("a", 2, digest(2), 3)};
    result.reports.push_back(std::move(report));
  }
  return result;
}

TEST_CASE("each case of the emulated world gets its schedules, in its name too") {
  CaseSpec own = named("own[tp2]");
  own.world.schedule = 7;
  const auto cases =
      with_schedules({named("one"), named("two[tp2]"), named("gloo", Backend::kGloo), own}, 2);
  std::vector<std::string> names;
  std::vector<int64_t> schedules;
  for (const CaseSpec& spec : cases) {
    names.push_back(spec.name);
    schedules.push_back(spec.world.schedule);
  }
  CHECK(names == std::vector<std::string>{"one[schedule=1]", "one[schedule=2]",
                                          "two[tp2,schedule=1]", "two[tp2,schedule=2]", "gloo",
                                          "own[tp2,schedule=1]", "own[tp2,schedule=2]"});
  CHECK(schedules == std::vector<int64_t>{1, 2, 1, 2, 0, 1, 2});
  CHECK(name_without_schedule("one[schedule=12]") == "one");
  CHECK(name_without_schedule("two[tp2,schedule=1]") == "two[tp2]");
  for (const char* other : {"own[tp2]", "own[schedule=x]", "own[my_schedule=3]", "own[schedule=3]a",
                            "schedule=3]", "own[schedule=]", "own[schedule=-1]"}) {
    CHECK(name_without_schedule(other) == other);
    CHECK(schedule_of_name(other) == 0);
  }
  CHECK(schedule_of_name("two[tp2,schedule=31]") == 31);
  CHECK(with_schedules({named("one")}, 0)[0].name == "one");
}

TEST_CASE("values that differ between schedules are a race, with the call before them") {
  ScheduleComparison comparison;
  CaseResult first = matched("x[tp2,schedule=1]", 1, {5, 6, 7});
  CaseResult other = matched("y[schedule=2]", 2, {1, 1, 1});
  CaseResult equal = matched("x[tp2,schedule=2]", 2, {5, 6, 7});
  CaseResult second = matched("x[tp2,schedule=3]", 3, {5, 8, 9});
  second.spec.file = "x.yaml";
  std::vector<int64_t> replayed_by;
  for (CaseResult* result : {&first, &other, &equal, &second}) {
    replayed_by.push_back(comparison.add(*result));
  }
  CHECK(replayed_by == std::vector<int64_t>{1, 2, 2, 3});
  CHECK(second.replay == "shardproof run x.yaml --only 'x[tp2]' --backend emulated");
  CHECK(first.as_expected);
  CHECK(other.as_expected);
  CHECK(equal.verdict == Verdict::kMatch);
  CHECK(second.verdict == Verdict::kMismatch);
  CHECK(second.kind == ResultKind::kRace);
  CHECK_FALSE(second.as_expected);
  CHECK(second.message ==
        "b of step 1 on rank 1 has other values under schedule 3 than under 1, from all_reduce tp "
        "'second' on");
}

TEST_CASE("cases whose schedules all have the same values are told, with their number") {
  ScheduleComparison comparison;
  std::vector<CaseResult> results = {
      matched("x[schedule=1]", 1, {5, 6, 7}), matched("x[schedule=2]", 2, {5, 6, 7}),
      matched("y[schedule=1]", 1, {5, 6, 7}), matched("y[schedule=2]", 2, {5, 6, 8}),
      matched("y[schedule=3]", 3, {5, 6, 7}), matched("z[schedule=1]", 1, {5, 6, 7})};
  for (CaseResult& result : results) comparison.add(result);
  CHECK(comparison.equal() ==
        std::vector<std::string>{"x: the values of 2 schedules are equal to the bit"});
}

TEST_CASE("a race keeps what else was found") {
  ScheduleComparison comparison;
  CaseResult first = matched("x[schedule=1]", 1, {5, 6, 7});
  CaseResult wrong = matched("x[schedule=2]", 2, {4, 6, 7});
  wrong.verdict = Verdict::kMismatch;
  wrong.message = "a is wrong";
  comparison.add(first);
  comparison.add(wrong);
  CHECK(wrong.kind == ResultKind::kRace);
  CHECK_THAT(wrong.message, Contains("a of step 1 on rank 1 has other values under schedule 2 "
                                     "than under 1, from all_gather tp 'first' on; a is wrong"));
}

TEST_CASE("a race names the lower schedule last, whichever finished first") {
  ScheduleComparison comparison;
  CaseResult fifth = matched("x[schedule=5]", 5, {5, 6, 7});
  CaseResult second = matched("x[schedule=2]", 2, {4, 6, 7});
  CHECK(comparison.add(fifth) == 5);
  CHECK(comparison.add(second) == 5);
  CHECK_THAT(second.message, Contains("has other values under schedule 5 than under 2"));
}

TEST_CASE("a value that only one schedule has is a race") {
  ScheduleComparison comparison;
  CaseResult first = matched("x[schedule=1]", 1, {5, 6, 7});
  CaseResult second = matched("x[schedule=2]", 2, {5, 6, 7});
  second.reports[1].rows.pop_back();
  comparison.add(first);
  comparison.add(second);
  CHECK(second.kind == ResultKind::kRace);
  CHECK(second.message == "rank 1 has 3 values under schedule 1 and 2 under 2");
}

TEST_CASE("what nothing judged stays internal under schedules") {
  ScheduleComparison comparison;
  CaseResult first = matched("x[schedule=1]", 1, {5, 6, 7});
  CaseResult second = matched("x[schedule=2]", 2, {4, 6, 7});
  second.verdict = Verdict::kInternal;
  comparison.add(first);
  CHECK(comparison.add(second) == 2);
  CHECK(second.verdict == Verdict::kInternal);
}

TEST_CASE("results without a schedule, and worlds that failed, are compared with nothing") {
  ScheduleComparison comparison;
  CaseResult first = matched("x[schedule=1]", 1, {5, 6, 7});
  CaseResult plain = matched("x", 0, {1, 2, 3});
  CaseResult gloo = matched("x", 1, {1, 2, 3});
  gloo.spec.world.backend = Backend::kGloo;
  CaseResult failed = matched("x[schedule=2]", 2, {1, 2, 3});
  failed.verdict = Verdict::kFailed;
  failed.endings[1].kind = ResultKind::kDied;
  for (CaseResult* result : {&first, &plain, &gloo, &failed}) comparison.add(*result);
  CHECK(plain.verdict == Verdict::kMatch);
  CHECK(gloo.verdict == Verdict::kMatch);
  CHECK(failed.verdict == Verdict::kFailed);
}

}  // namespace
}  // namespace shardproof::tests
