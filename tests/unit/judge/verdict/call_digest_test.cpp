// Members' hashes show which calls did not deliver the data that was sent.
#include "sim/judge/verdict/call_digest.h"

#include <catch2/catch.hpp>

#include "sim/judge/verdict/fault_effect.h"
#include "tests/unit/judge/judged_world.h"

namespace shardproof::sim::judge {
namespace {

using Digests = std::vector<uint64_t>;

CallDigest member(Op op, const std::vector<int64_t>& ranks, int64_t place, Digests sent,
                  Digests received) {
  return {.call = {.rank = ranks.at(static_cast<size_t>(place)),
                   .group = "tp",
                   .group_rank = place,
                   .op = op,
                   .label = "o_proj forward",
                   .dtype = "float64",
                   .shape = {4}},
          .sent = std::move(sent),
          .received = std::move(received)};
}

std::vector<std::string> messages_of(const std::vector<std::vector<CallDigest>>& calls) {
  std::vector<std::string> messages;
  for (const DigestFinding& finding : digest_findings(calls)) messages.push_back(finding.message);
  return messages;
}

TEST_CASE("calls that delivered what was sent are no finding", "[digests]") {
  const std::vector<int64_t> ranks = {4, 6};
  std::vector<std::vector<CallDigest>> calls = {
      {member(Op::kAllGather, ranks, 0, {10}, {10, 11}),
       member(Op::kAllToAll, ranks, 0, {20, 21}, {20, 30}),
       member(Op::kAllReduce, ranks, 0, {}, {7}), member(Op::kBroadcast, ranks, 0, {5}, {}),
       member(Op::kScatter, ranks, 0, {1, 2}, {1})},
      {member(Op::kAllGather, ranks, 1, {11}, {10, 11}),
       member(Op::kAllToAll, ranks, 1, {30, 31}, {21, 31}),
       member(Op::kAllReduce, ranks, 1, {}, {7}), member(Op::kBroadcast, ranks, 1, {}, {5}),
       member(Op::kScatter, ranks, 1, {}, {2})}};
  for (auto& of_rank : calls) {
    for (size_t i = 0; i < of_rank.size(); ++i) {
      of_rank[i].call.sequence = static_cast<int64_t>(i);
      if (i > 2) of_rank[i].call.root = 0;
    }
  }
  CHECK(messages_of(calls).empty());
  calls[1][1].received[0] = 22;
  CHECK(messages_of(calls) ==
        std::vector<std::string>{"rank 6 received from rank 4 something else than rank 4 sent in "
                                 "all_to_all tp [4] float64 'o_proj forward' (call 1 of tp)"});
  calls[1][4].received[0] = 1;  // the root's own part
  CHECK(digest_findings(calls).size() == 2);
  CHECK(digest_findings(calls)[1].ranks == std::vector<int64_t>{4, 6});
}

TEST_CASE("a group that is made again keeps the findings of the first", "[digests]") {
  const std::vector<int64_t> ranks = {0, 1};
  std::vector<std::vector<CallDigest>> calls(2);
  for (int64_t rank = 0; rank < 2; ++rank) {
    for (const uint64_t received :
         {rank == 0 ? 10u : 11u, 12u}) {  // each call is the first of its group
      calls[static_cast<size_t>(rank)].push_back(
          member(Op::kAllReduce, ranks, rank, {}, {received}));
    }
  }
  const std::vector<DigestFinding> found = digest_findings(calls);
  REQUIRE(found.size() == 1);
  CHECK_THAT(found[0].message,
             Catch::StartsWith("either rank 1 or rank 0 holds another result of all_reduce"));
}

TEST_CASE("the result that the fewest hold is named", "[digests]") {
  const std::vector<int64_t> ranks = {1, 3, 5};
  const auto results = [&](Digests of) {
    std::vector<std::vector<CallDigest>> calls;
    for (size_t i = 0; i < of.size(); ++i) {
      calls.push_back({member(Op::kAllReduce, ranks, static_cast<int64_t>(i), {}, {of[i]})});
    }
    return messages_of(calls);
  };
  const std::string call = "of all_reduce tp [4] float64 'o_proj forward' (call 0 of tp) than ";
  CHECK(results({8, 8, 8}).empty());
  CHECK(results({8, 9, 8}) ==
        std::vector<std::string>{"rank 3 holds another result " + call + "ranks 1, 5"});
  CHECK(results({9, 8, 8}) ==
        std::vector<std::string>{"rank 1 holds another result " + call + "ranks 3, 5"});
  CHECK(results({7, 8, 9}) ==
        std::vector<std::string>{"ranks 3, 5 hold another result " + call + "rank 1"});
}

TEST_CASE("messages meet by their two ends, tag and number", "[digests]") {
  const std::vector<int64_t> ranks = {0, 1, 2};
  const auto message = [&](Op op, int64_t place, int64_t other, int64_t number, uint64_t digest) {
    const bool sends = op == Op::kSend;
    CallDigest call = member(op, ranks, place, sends ? Digests{digest} : Digests{},
                             sends ? Digests{} : Digests{digest});
    call.call.root = other;
    call.call.sequence = number;
    return call;
  };
  const std::vector<std::vector<CallDigest>> calls = {
      {message(Op::kSend, 0, 1, 0, 1), message(Op::kSend, 0, 1, 1, 2),
       message(Op::kRecv, 0, 2, 0, 9)},
      {message(Op::kRecv, 1, 0, 0, 1), message(Op::kRecv, 1, 0, 1, 3)},
      {message(Op::kSend, 2, 0, 0, 9)}};
  CHECK(
      messages_of(calls) ==
      std::vector<std::string>{"rank 1 received from rank 0 something else than rank 0 sent in "
                               "recv from rank 0 tp [4] float64 'o_proj forward' (call 1 of tp)"});
}

TEST_CASE("a member that did not tell is passed over", "[digests]") {
  CHECK(messages_of({{member(Op::kAllGather, {0, 1}, 0, {10}, {10, 99})}, {}}).empty());
  CHECK(messages_of({{member(Op::kRecv, {0, 1}, 0, {}, {3})}, {}}).empty());
  CHECK(messages_of({}).empty());
}

TEST_CASE("endings outrank values, values digests, digests the schedule", "[digests]") {
  CaseSpec spec = spec_of(2, 1);
  const JudgedWorld world(spec, {seen("grad.a", numbered({4}, 2))});
  const auto ended = [&](const JudgedWorld::Plant& plant) {
    std::vector<RankEnding> endings = world.endings(plant);
    endings[0].digests = {member(Op::kAllGather, {0, 1}, 0, {10}, {10, 11})};
    endings[1].digests = {member(Op::kAllGather, {0, 1}, 1, {11}, {12, 11})};
    endings[1].digests[0].step = 1;
    return endings;
  };
  const auto altered = [&](const JudgedWorld::Plant& plant) {
    return judge::judge(spec, ended(plant));
  };
  const CaseResult alone = altered([](int64_t, Observation&) {});
  CHECK(alone.verdict == Verdict::kMismatch);
  CHECK(alone.kind == ResultKind::kDigest);
  CHECK_THAT(alone.message, Catch::StartsWith("rank 1 received from rank 0 something else"));
  CHECK(detectors_text(alone.outcome) ==
        "digest at step 1 (all_gather tp [4] float64 'o_proj forward')");
  const auto twice = [](int64_t, Observation& observation) {
    observation.tensor = observation.tensor * 2;
  };
  const CaseResult both = altered(twice);
  CHECK(both.kind == ResultKind::kValues);
  CHECK_THAT(detectors_text(both.outcome), Catch::StartsWith("values at step"));
  CHECK_THAT(detectors_text(both.outcome), Catch::Contains(", then digest at step 1"));
  REQUIRE(both.divergence);  // the wrong call is the cause of the wrong values
  CHECK_THAT(both.divergence->pattern, Catch::StartsWith("every element is 2.00 x golden"));
  CHECK(both.divergence->likely == alone.message);
  std::vector<RankEnding> dead = ended(twice);
  dead[1].kind = ResultKind::kDied;
  CHECK(judge::judge(spec, dead).kind == ResultKind::kDied);
  std::vector<RankEnding> unreadable = ended(twice);
  unreadable[0].bytes = "x";
  CHECK(judge::judge(spec, unreadable).kind == ResultKind::kInternal);
  spec.expect.collectives = {{"tp", {{"all_reduce", 9}}}};
  CHECK(altered([](int64_t, Observation&) {}).kind == ResultKind::kDigest);
  CHECK(judge::judge(spec, world.endings()).kind == ResultKind::kSchedule);
}

}  // namespace
}  // namespace shardproof::sim::judge
