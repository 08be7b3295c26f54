// The first rank that notices a planted fault, its effect on gradients, and a fault without effect.
#include "sim/judge/verdict/fault_effect.h"

#include <catch2/catch.hpp>

#include "tests/unit/judge/judged_world.h"

namespace shardproof::sim::judge {
namespace {

CaseSpec faulty_spec() {
  CaseSpec spec = spec_of(2, 1);
  spec.faults.push_back({.kind = FaultKind::kDrop, .rank = 1, .label = "grad."});
  return spec;
}

JudgedWorld two_gradients(const CaseSpec& spec) {
  return JudgedWorld(spec, {seen("lm_head.output", numbered({4}), Phase::kForward),
                            seen("grad.a", numbered({4}, 2)), seen("grad.b", numbered({4}, 3)),
                            seen("grad_norm", numbered({}, 4))});
}

std::vector<RankEnding> fired(std::vector<RankEnding> endings, bool fired = true) {
  FaultNote note;
  note.fired = fired;
  note.step = 1;
  note.call = "all_reduce(sum) dp[0,1] [8] float64 grad.a .. grad.b";
  note.calls = 9;
  note.matches = 1;
  endings[1].faults = {note};
  return endings;
}

JudgedWorld::Plant wrong(const std::string& name, double by = 2) {
  return [=](int64_t, Observation& observation) {
    if (observation.name == name) observation.tensor = observation.tensor * by;
  };
}

CaseResult judged_fault(const JudgedWorld::Plant& plant, CaseSpec spec = faulty_spec()) {
  spec.expect.verdict = Verdict::kMismatch;
  return judge::judge(spec, fired(two_gradients(spec).endings(plant)));
}

TEST_CASE("a wrong value is seen by values, with the gradients counted", "[faults]") {
  const CaseResult result = judged_fault(wrong("grad.b"));
  CHECK(first_detector(result.outcome) == "values");
  CHECK(detectors_text(result.outcome) == "values at step 1 (grad.b)");
  CHECK(result.outcome.gradients == 2);
  CHECK(result.outcome.wrong_gradients == 1);
  CHECK(result.outcome.first_gradient == "grad.b of step 1");
  CHECK_THAT(result.outcome.worst_gradient, Catch::StartsWith("grad.b of step 1 (golden"));
  CHECK(result.as_expected);
  const std::string text = describe_result(result, false);
  CHECK_THAT(text, Catch::Contains("drop on rank 1 in step 1, at all_reduce(sum) dp[0,1]"));
  CHECK_THAT(text, Catch::Contains("1 of 2 gradients are wrong, the first grad.b of step 1"));
}

TEST_CASE("all who saw it are listed, the first one first", "[faults]") {
  const CaseResult result = judged_fault([](int64_t rank, Observation& observation) {
    if (observation.name == "grad_norm") observation.tensor = observation.tensor * 3;
    if (rank == 1 && observation.name == "grad.b") observation.tensor = observation.tensor * 2;
  });
  REQUIRE(result.outcome.detections.size() == 3);
  CHECK(result.outcome.detections[0].detector == "values");
  CHECK(result.outcome.detections[1].detector == "replicas");
  CHECK(result.outcome.detections[2].detector == "norm");
}

TEST_CASE("a buffer that changed in flight was seen by its digest", "[faults]") {
  std::vector<RankEnding> endings = fired(two_gradients(faulty_spec()).endings());
  endings[0].kind = ResultKind::kInFlight;
  const CaseResult result = judge::judge(faulty_spec(), endings);
  CHECK(first_detector(result.outcome) == "digest");
  CHECK(result.outcome.detections.front().step == 1);
}

TEST_CASE("a fault that never acted is an error of its scenario", "[faults]") {
  const CaseSpec spec = faulty_spec();
  const CaseResult quiet = judge::judge(spec, fired(two_gradients(spec).endings(), false));
  CHECK(quiet.verdict == Verdict::kBadInput);
  CHECK_FALSE(quiet.as_expected);
  CHECK(exit_status({quiet}) == 2);
  CHECK_THAT(
      quiet.message,
      Catch::Contains("the fault drop on rank 1 never acted: rank 1 made 9 calls, 1 of them"));
  CHECK_THAT(quiet.message, Catch::Contains("at_call is 0"));

  CaseSpec expecting = spec;
  expecting.expect.verdict = Verdict::kMismatch;
  const auto endings = fired(two_gradients(spec).endings(wrong("grad.a")), false);
  const CaseResult other = judge::judge(expecting, endings);
  CHECK(other.verdict == Verdict::kMismatch);
  CHECK_FALSE(other.as_expected);
  CHECK_THAT(other.unexpected, Catch::Contains("never acted"));

  std::vector<RankEnding> silent = two_gradients(spec).endings();  // no rank reports the fault
  CHECK(judge::judge(spec, silent).verdict == Verdict::kBadInput);
  CHECK(judge::judge(spec_of(2, 1), silent).verdict == Verdict::kMatch);
}

}  // namespace
}  // namespace shardproof::sim::judge
