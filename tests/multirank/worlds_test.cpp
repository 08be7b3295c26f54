// The same small rank as threads and as Gloo processes: its results, and the ways in which it
// fails.
#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "tests/multirank/small_ranks.h"

namespace shardproof::sim::world {
namespace {

const std::vector<std::string> kWorlds = {"emulated", "gloo"};

void check_that_all_finish(const std::vector<RankEnding>& endings) {
  for (const RankEnding& ending : endings) {
    INFO("rank " << ending.rank << ": " << ending.message << " | last " << ending.last_call);
    CHECK(ending.kind == ResultKind::kFinished);
  }
}

TEST_CASE("all ranks compute the same sums, cold and warm", "[multirank]") {
  WorldPool pool(small_workers());
  for (const std::string& backend : kWorlds) {
    for (const int64_t size : {1, 2, 3, 5}) {
      INFO(backend << " " << size);
      const auto first = pool.run_case(small_case(backend, size), -1, false);
      const auto second = pool.run_case(small_case(backend, size), -1, false);
      check_that_all_finish(first);
      check_that_all_finish(second);
      CHECK(first[0].bytes == second[0].bytes);  // the same process
    }
  }
}

TEST_CASE("a write to a closed socket ends no rank", "[multirank][fault]") {
  WorldPool pool(small_workers());
  for (const std::string& backend : kWorlds) {
    INFO(backend);
    check_that_all_finish(pool.run_case(small_case(backend, 3, {{"rank 1", "pipe"}}), -1, false));
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
      {{"", "square"}, "disagreement", "shape [4] against [2,2]"},
      {{"", "float"}, "disagreement", "dtype float64 against float32"},
      {{"other label", ""}, "disagreement", "label 'another layer' against 'layer 1'"},
      {{"root 0", "root 1"}, "disagreement", "root 0 against 1"},
      {{"dim 0", "dim 1"}, "disagreement", "dim 0 against 1"},
      {{"parts 1 3", "parts 3 1"}, "disagreement", "sizes [1,3] against [3,1]"},
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

// Only the emulated world sees it.
TEST_CASE("a buffer that is written before the wait is named with its rank and call",
          "[multirank][fault]") {
  WorldPool pool(small_workers());
  const CaseSpec spec =
      small_case("emulated", 2, {{"rank 0", "gather"}, {"rank 1", "write early"}});
  CHECK_THAT(finding_of(pool.run_case(spec, -1, false)),
             Catch::Contains("in_flight | rank 1 wrote to the input of all_gather world[0,1]") &&
                 Catch::Contains("'layer 1'") && Catch::Contains("wait() for the call"));
  check_that_all_finish(pool.run_case(small_case("emulated", 2), -1, false));
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
    for (const FaultKind kind : {FaultKind::kKill, FaultKind::kThrow, FaultKind::kKill}) {
      CaseSpec spec = small_case(backend, 3);
      spec.faults.push_back({.kind = kind, .rank = 1, .label = "layer 0"});
      CHECK(pool.run_case(spec, -1, false)[1].kind ==
            (kind == FaultKind::kKill ? ResultKind::kDied : ResultKind::kThrew));
      check_that_all_finish(pool.run_case(small_case(backend, 3), -1, false));
    }
  }
}

}  // namespace
}  // namespace shardproof::sim::world
