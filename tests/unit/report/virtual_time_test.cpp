// The parts of virtual time, and the chain of events that determines it.
#include "sim/report/virtual_time.h"

#include <catch2/catch.hpp>

#include "sim/report/summary.h"
#include "sim/report/timeline.h"

namespace shardproof::tests {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;
using namespace sim;
using namespace sim::judge;

Stretch stretch(const char* kind, double from, double to, const char* name = "compute") {
  return {.name = name,
          .kind = find_enum<StretchKind>(kind).value(),
          .in_virtual_time = true,
          .start_us = from,
          .duration_us = to - from};
}

Stretch transfer(const char* name, double ready, double from, double to, int64_t last_rank,
                 double blocked_from) {
  Stretch entry = stretch("communication", from, to, name);
  entry.group = "tp[0,1]";
  entry.ready_us = ready;
  entry.blocked_from_us = blocked_from;
  entry.last_rank = last_rank;
  return entry;
}

// Rank 1 computes 30 us and rank 0 10 us before all_reduce 'a' of 20 us. Then rank 0 computes 40
// us, which hides the asynchronous 'b' of 15 us; rank 1 only waits for it.
CaseResult two_ranks() {
  CaseResult result;
  result.spec.name = "clock/two";
  result.spec.world.compute = ComputeTime::kFixed;
  result.verdict = Verdict::kMatch;
  result.as_expected = true;
  result.reports.resize(2);
  const char* a = "all_reduce(sum) tp[0,1] [4] float64 'a'";
  const char* b = "all_reduce(sum) tp[0,1] [4] float64 'b'";
  result.reports[0].rank = 0;
  result.reports[0].timeline = {stretch("compute", 0, 10),     stretch("waiting", 10, 30, a),
                                stretch("exposed", 30, 50, a), transfer(a, 30, 30, 50, 1, 10),
                                stretch("compute", 50, 90),    transfer(b, 50, 50, 65, 0, 90)};
  result.reports[1].rank = 1;
  result.reports[1].timeline = {stretch("compute", 0, 30), stretch("exposed", 30, 50, a),
                                transfer(a, 30, 30, 50, 1, 30), stretch("exposed", 50, 65, b),
                                transfer(b, 50, 50, 65, 0, 50)};
  return result;
}

TEST_CASE("time is computing, waiting and exposed communication", "[report][clock]") {
  const auto time = sim::report::virtual_time(two_ranks());
  REQUIRE(time);
  CHECK(time->total_us == 90);
  REQUIRE(time->ranks.size() == 2);
  CHECK(time->ranks[0].compute_us == 50);
  CHECK(time->ranks[0].waiting_us == 20);
  CHECK(time->ranks[0].exposed_us == 20);
  CHECK(time->ranks[0].communication_us == 35);  // 15 of it hidden
  CHECK(time->ranks[1].total_us == 65);
  CHECK(time->ranks[1].exposed_us == 35);
}

TEST_CASE("the critical path goes over the rank that came last", "[report][clock]") {
  const auto time = sim::report::virtual_time(two_ranks());
  REQUIRE(time);
  REQUIRE(time->path.size() == 3);
  CHECK(time->path[0].rank == 1);
  CHECK(time->path[0].compute);
  CHECK(time->path[0].duration_us == 30);
  CHECK_THAT(time->path[1].name, Contains("'a'"));
  CHECK(time->path[1].start_us == 30);
  CHECK(time->path[2].rank == 0);
  CHECK(time->path[2].duration_us == 40);
}

TEST_CASE("a transfer that was queued brings the one before it onto the path", "[report][clock]") {
  CaseResult result = two_ranks();
  const char* c = "all_gather tp[0,1] [4] float64 'c'";
  result.reports[0].timeline = {stretch("compute", 0, 5),
                                transfer("all_gather tp[0,1] [4] float64 'first'", 2, 2, 22, 1, 40),
                                stretch("exposed", 5, 40, c), transfer(c, 4, 22, 40, 1, 5)};
  result.reports[1].timeline = {stretch("compute", 0, 4)};
  const auto time = sim::report::virtual_time(result);
  REQUIRE(time);
  REQUIRE(time->path.size() == 3);
  CHECK((time->path[0].rank == 1 && time->path[0].compute && time->path[0].duration_us == 2));
  CHECK_THAT(time->path[1].name, Contains("'first'"));
  CHECK_THAT(time->path[2].name, Contains("'c'"));
}

TEST_CASE("the terminal's line says where the time went", "[report][clock]") {
  const std::string line = sim::report::case_line(two_ranks(), false);
  CHECK_THAT(line, Contains("virtual 0.090 ms: compute 0.040, waiting 0.010, exposed communication "
                            "0.028 of 0.035 (mean over ranks)"));
  CHECK_THAT(line, Contains("critical path: rank 0 compute 44%, rank 1 compute 33%, "
                            "all_reduce(sum) tp[0,1] 22%"));
}

TEST_CASE("CPU time alone is nothing that the terminal talks about", "[report][clock]") {
  CaseResult result = two_ranks();
  result.spec.world = {};
  CHECK(sim::report::virtual_time_line(result).empty());
  CHECK(sim::report::virtual_time(result));  // for results.json
}

TEST_CASE("wall time and a rank that is not there have no virtual time", "[report][clock]") {
  CaseResult result = two_ranks();
  result.reports[0].timeline = {
      {.name = "x", .kind = StretchKind::kWait, .start_us = 1, .duration_us = 2}};
  result.reports[1].timeline = {};
  CHECK(!sim::report::virtual_time(result));
  CHECK(sim::report::virtual_time_json(result).is_null());
  result.reports[1].timeline = {{.name = "x", .in_virtual_time = true, .last_rank = 77}};
  CHECK(sim::report::virtual_time(result)->total_us == 0);
}

TEST_CASE("results.json lists ranks and the longest steps of the path in order",
          "[report][clock]") {
  CaseResult result = two_ranks();
  const auto shown = sim::report::virtual_time_json(result);
  CHECK(shown["total_us"] == 90.0);
  CHECK(shown["ranks"][1]["waiting_us"] == 0.0);
  CHECK(shown["critical_path"].size() == 3);
  CHECK(shown["critical_path"][0]["what"] == "compute");
  CHECK(shown["critical_path_left_out"] == 0);
  REQUIRE(shown["critical_path_shares"].size() == 3);
  CHECK(shown["critical_path_shares"][0]["what"] == "rank 0 compute");
  CHECK(shown["critical_path_shares"][0]["duration_us"] == 40.0);

  std::vector<Stretch> many;
  double at = 0;
  for (int i = 0; i < 60; ++i) {
    many.push_back(stretch("compute", at, at + 1 + i));
    const double end = at + 1 + i;
    many.push_back(stretch("exposed", end, end + 2, "barrier tp[0,1] ''"));
    many.push_back(transfer("barrier tp[0,1] ''", end, end, end + 2, 0, end));
    at = end + 2;
  }
  result.reports.resize(1);
  result.reports[0].timeline = many;
  const auto long_path = sim::report::virtual_time_json(result);
  CHECK(long_path["critical_path"].size() == 40);
  CHECK(long_path["critical_path_left_out"] == 80);
  CHECK(long_path["critical_path"][39]["duration_us"].get<double>() >= 2);
}

TEST_CASE("a trace shows transfers and the critical path on threads of their own",
          "[report][clock]") {
  const json trace =
      json::parse(sim::report::kTimelineHead + sim::report::timeline_events(0, two_ranks()) +
                  sim::report::kTimelineEnd);
  std::map<std::string, int64_t> threads;
  double on_path = 0;
  for (const json& event : trace["traceEvents"]) {
    if (event["name"] == "thread_name") threads[event["args"]["name"]] = event["tid"];
    if (event["ph"] != "X") continue;
    if (event["cat"] == "communication") CHECK(event["tid"].get<int64_t>() >= 2);
    if (event["cat"] == "critical path") on_path += event["dur"].get<double>();
    CHECK(event["args"].contains("rank"));
  }
  CHECK(threads.at("rank 1") == 1);
  CHECK(threads.count("rank 1 in tp[0,1]") == 1);
  CHECK(threads.count("critical path") == 1);
  CHECK(on_path == 90);
}

Stretch action(const char* name, double from, double to) {
  Stretch entry = stretch("action", from, to, name);
  entry.step = 1;
  return entry;
}

// Of 90 us between the first and the last action rank 0 computes 10 and 35 us, rank 1 10 us in the
// first one, which waits for 20 us, and 15 in the last one.
TEST_CASE("a bubble is the time of a step in which stages compute no action", "[report][clock]") {
  CaseResult result = two_ranks();
  CHECK_FALSE(sim::report::virtual_time(result)->bubble);
  CHECK_FALSE(sim::report::virtual_time_json(result).contains("bubble"));
  for (const Stretch& entry : {action("F0", 0, 10), action("B0", 50, 85)}) {
    result.reports[0].timeline.push_back(entry);
  }
  for (const Stretch& entry : {action("F0", 20, 50), action("B0", 75, 90)}) {
    result.reports[1].timeline.push_back(entry);
  }
  const auto time = sim::report::virtual_time(result);
  REQUIRE(time->bubble);
  CHECK(*time->bubble == Approx(1 - (10 + 35 + 10 + 15) / 180.0));
  CHECK_FALSE(time->bubble_formula);
  result.reports[1].metrics["bubble_formula"] = 0.25;
  CHECK(sim::report::virtual_time_json(result)["bubble_formula"] == 0.25);
  CHECK_THAT(sim::report::virtual_time_line(result),
             Contains("bubble 61.1% of a step measured, 25.0% by formula"));
}

}  // namespace
}  // namespace shardproof::tests
