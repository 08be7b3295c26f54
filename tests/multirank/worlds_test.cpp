// The same small rank as threads and as Gloo processes: its results, and the ways in which it
// fails.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "tests/multirank/small_ranks.h"

namespace shardproof::sim {
namespace {

const std::vector<std::string> kWorlds = {"emulated", "gloo"};

// "0 finished, 1 died, ..." for messages.
std::string kinds(const std::vector<RankEnding>& endings) {
  std::string text;
  for (const RankEnding& ending : endings) {
    text += fmt::format("rank {} {} | {} | last call {}\n", ending.rank, ending.kind,
                        ending.message, ending.last_call);
  }
  return text;
}

CaseSpec with_fault(const std::string& backend, const std::string& kind, int64_t rank,
                    const std::string& label) {
  CaseSpec spec = small_case(backend, 3);
  spec.faults.push_back({.kind = enum_of<FaultKind>(kind), .rank = rank, .label = label});
  return spec;
}

TEST_CASE("all ranks compute the same sums, cold and warm", "[multirank]") {
  WorldPool pool(small_workers());
  for (const std::string& backend : kWorlds) {
    for (const int64_t size : {1, 2, 3, 5}) {
      INFO(backend << " " << size);
      const auto first = pool.run_case(small_case(backend, size), -1, false);
      const auto second = pool.run_case(small_case(backend, size), -1, false);
      for (const auto& endings : {first, second}) {
        INFO(kinds(endings));
        for (const RankEnding& ending : endings) CHECK(ending.kind == ResultKind::kFinished);
      }
      CHECK(first[0].bytes == second[0].bytes);  // the same process
    }
  }
}

TEST_CASE("a rank killed by SIGKILL in mid-step is the one that died", "[multirank][fault]") {
  WorldPool pool(small_workers());
  for (const std::string& backend : kWorlds) {
    const auto endings = pool.run_case(with_fault(backend, "kill", 1, "layer 1"), -1, false);
    INFO(backend << "\n" << kinds(endings));
    CHECK(endings[1].kind == ResultKind::kDied);
    CHECK_THAT(endings[1].message, Catch::Contains("SIGKILL"));
    CHECK(endings[0].kind == ResultKind::kAborted);
    CHECK(endings[2].kind == ResultKind::kAborted);
    CHECK_THAT(endings[0].last_call, Catch::Contains("layer"));
    const auto next = pool.run_case(small_case(backend, 3), -1, false);
    INFO(kinds(next));
    CHECK(next[1].kind == ResultKind::kFinished);
  }
}

TEST_CASE("a write to a closed socket ends no rank", "[multirank][fault]") {
  WorldPool pool(small_workers());
  for (const std::string& backend : kWorlds) {
    const auto endings = pool.run_case(small_case(backend, 3, {{"rank 1", "pipe"}}), -1, false);
    INFO(backend << "\n" << kinds(endings));
    for (const RankEnding& ending : endings) CHECK(ending.kind == ResultKind::kFinished);
  }
}

TEST_CASE("a rank that never enters a collective is the one that hung", "[multirank][fault]") {
  WorldPool pool(small_workers());
  for (const std::string& backend : kWorlds) {
    const auto endings = pool.run_case(with_fault(backend, "hang", 2, ""), -1, false);
    INFO(backend << "\n" << kinds(endings));
    CHECK(endings[2].kind == ResultKind::kHung);
    CHECK(endings[0].kind == ResultKind::kAborted);
    CHECK(endings[1].kind == ResultKind::kAborted);
    // By the rule, not by the deadline of 30 s.
    CHECK_THAT(endings[2].message, Catch::Contains("for 1 s no rank entered a collective"));
  }
}

TEST_CASE("a rank that throws is the one that threw", "[multirank][fault]") {
  WorldPool pool(small_workers());
  for (const std::string& backend : kWorlds) {
    for (const bool planted : {true, false}) {
      CaseSpec spec = planted ? with_fault(backend, "throw", 0, "layer 2")
                              : small_case(backend, 3, {{"rank 0", "stray"}});
      const auto endings = pool.run_case(spec, -1, false);
      INFO(backend << "\n" << kinds(endings));
      CHECK(endings[0].kind == ResultKind::kThrew);
      CHECK_THAT(endings[0].message,
                 Catch::Contains(planted ? "planted fault" : "stray exception"));
      CHECK(endings[1].kind == ResultKind::kAborted);
      CHECK(endings[2].kind == ResultKind::kAborted);
    }
  }
}

TEST_CASE("a skipped call is found where the others wait for it", "[multirank][fault]") {
  WorldPool pool(small_workers());
  for (const std::string& backend : kWorlds) {
    CaseSpec spec = with_fault(backend, "skip", 1, "layer 1");
    spec.options = {{"unchecked", true}};
    const auto endings = pool.run_case(spec, -1, false);
    INFO(backend << "\n" << kinds(endings));
    CHECK(endings[1].kind ==
          ResultKind::kDisagreement);  // its call of layer 2 meets layer 1 of the others
    CHECK_THAT(endings[1].message, Catch::Contains("layer 1") && Catch::Contains("layer 2") &&
                                       Catch::Contains("Rank 1:"));
  }
}

TEST_CASE("a rank that leaves early is named in the call that waits for it", "[multirank][fault]") {
  WorldPool pool(small_workers());
  for (const std::string& backend : kWorlds) {
    const auto endings = pool.run_case(small_case(backend, 3, {{"rank 1", "leave"}}), -1, false);
    INFO(backend << "\n" << kinds(endings));
    const auto& waiting = endings[0].kind == ResultKind::kDeadlock ? endings[0] : endings[2];
    CHECK(waiting.kind == ResultKind::kDeadlock);
    CHECK_THAT(waiting.message, Catch::Contains("rank 1") && Catch::Contains("layer 1"));
    CHECK_THAT(waiting.message, !Catch::Contains("no rank entered a collective"));  // at once
  }
}

TEST_CASE("ranks that call different collectives are both named", "[multirank][fault]") {
  WorldPool pool(small_workers());
  for (const std::string& backend : kWorlds) {
    const auto endings = pool.run_case(small_case(backend, 3, {{"rank 2", "gather"}}), -1, false);
    INFO(backend << "\n" << kinds(endings));
    CHECK(endings[2].kind == ResultKind::kDisagreement);
    CHECK_THAT(endings[2].message, Catch::Contains("all_gather") && Catch::Contains("all_reduce"));
  }
}

// What a world finds, and the ranks that it names. (Where ranks are processes, one may be further
// on by then: their last calls are not compared.)
std::string finding_of(const std::vector<RankEnding>& endings) {
  std::string text;
  for (const RankEnding& ending : endings) {
    if (ending.kind == ResultKind::kFinished || ending.kind == ResultKind::kAborted) continue;
    text += fmt::format("rank {} {} | {}\n", ending.rank, ending.kind, ending.message);
  }
  return text;
}

TEST_CASE("a wrong call is the same finding on every world", "[multirank][fault]") {
  using Acts = std::vector<std::string>;
  struct Wrong {
    Acts acts;  // by rank
    std::string code, words;
  };
  const Wrong cases[] = {
      {{"", "gather"}, "disagreement", "op all_reduce(sum) against all_gather"},
      {{"max", ""}, "disagreement", "reduce op max against sum"},
      {{"", "longer"}, "disagreement", "shape [4] against [8]"},
      {{"", "float"}, "disagreement", "dtype float64 against float32"},
      {{"other label", ""}, "disagreement", "label 'another layer' against 'layer 1'"},
      {{"root 0", "root 1"}, "disagreement", "root 0 against 1"},
      {{"rows 1 3", "rows 2 2"}, "disagreement", "sends 3 rows to rank 1, which expects 4"},
      {{"send", "receive longer"}, "disagreement", "shape [4] against [8]"},
      {{"send first", "send first"}, "deadlock", "rank 0 waits for rank 1 in send to rank 1"},
      {{"dp first", "dp last"}, "deadlock", "ranks wait for each other: rank 0 waits for rank 1"},
      {{"", "leave"}, "deadlock", "rank 1 has ended; rank 0 waits for rank 1"},
      {{"start", "start and wait"}, "never_waited", "rank 0 started all_reduce(sum)"},
      {{"stray", ""}, "threw", "stray exception"},
  };
  WorldPool pool(small_workers());
  for (const Wrong& wrong : cases) {
    std::vector<std::string> found;
    for (const std::string& backend : kWorlds) {
      CaseSpec spec =
          small_case(backend, 2, {{"rank 0", wrong.acts[0]}, {"rank 1", wrong.acts[1]}});
      found.push_back(finding_of(pool.run_case(spec, -1, false)));
    }
    CHECK(found[0] == found[1]);
    CHECK_THAT(found[0], Catch::Contains(wrong.code + " |") && Catch::Contains(wrong.words));
  }
}

TEST_CASE("a planted fault in a call is the same finding on every world", "[multirank][fault]") {
  WorldPool pool(small_workers());
  for (const std::string kind : {"repeat", "skip", "throw"}) {
    for (const std::string label : {"layer 1", "layer 2"}) {  // the last: its peer has ended
      std::vector<std::string> found;
      for (const std::string& backend : kWorlds) {
        CaseSpec spec = small_case(backend, 2, {{"unchecked", true}});
        spec.faults.push_back({.kind = enum_of<FaultKind>(kind), .rank = 1, .label = label});
        found.push_back(finding_of(pool.run_case(spec, -1, false)));
      }
      INFO(kind << " of " << label);
      CHECK(found[0] == found[1]);
      CHECK_THAT(found[0], Catch::Contains("rank 1 "));
    }
  }
}

TEST_CASE("fault after fault, each world is made anew", "[multirank][fault]") {
  WorldPool pool(small_workers());
  for (const std::string& backend : kWorlds) {
    for (const std::string kind : {"kill", "throw", "kill", "throw"}) {
      CHECK(pool.run_case(with_fault(backend, kind, 1, "layer 0"), -1, false)[1].kind !=
            ResultKind::kFinished);
      const auto endings = pool.run_case(small_case(backend, 3), -1, false);
      INFO(kinds(endings));
      CHECK(endings[1].kind == ResultKind::kFinished);
    }
  }
}

}  // namespace
}  // namespace shardproof::sim
