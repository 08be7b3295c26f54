#include "sim/world/launch/world_pool.h"

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <map>
#include <set>

#include "tests/unit/world/launch/toy_workers.h"

namespace shardproof::sim::world {
namespace {

size_t count_entries(const char* folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

std::set<std::string> pids_of(const std::vector<RankEnding>& endings) {
  std::set<std::string> pids;
  for (const RankEnding& ending : endings) pids.insert(ending.bytes);
  return pids;
}

TEST_CASE("a world is used again after a case that finished, unless it must be fresh", "[launch]") {
  WorldPool pool(toy_workers());
  for (const std::string backend : {"gloo", "emulated"}) {
    const auto first = pids_of(pool.run_case(toy_case(backend, 2), -1, false));
    CHECK(first.size() == (backend == "gloo" ? 2 : 1));  // a process each, or one for all
    CHECK(pids_of(pool.run_case(toy_case(backend, 2), -1, false)) == first);
    const auto fresh = pids_of(pool.run_case(toy_case(backend, 2), -1, true));
    CHECK(fresh != first);
    CHECK(pids_of(pool.run_case(toy_case(backend, 3), -1, false)) != fresh);
    CHECK(pids_of(pool.run_case(toy_case(backend, 2), -1, false)) == fresh);

    CaseSpec faulty = toy_case(backend, 2);
    faulty.faults.push_back({.kind = FaultKind::kThrow, .rank = 0, .label = "nowhere"});
    const auto with_fault = pids_of(pool.run_case(faulty, -1, false));
    CHECK(with_fault != fresh);
    CHECK(pids_of(pool.run_case(toy_case(backend, 2), -1, false)) != with_fault);
    std::set<std::string> spoilt;
    pool.start_case(toy_case(backend, 2), -1, false, [&](const WorldRun& run) {
      spoilt = pids_of(run.endings);
      return false;  // judging showed more than wrong values
    });
    pool.wait_until([&] { return !spoilt.empty(); });
    CHECK(pids_of(pool.run_case(toy_case(backend, 2), -1, false)) != spoilt);
  }
}

TEST_CASE("a refusal before the first collective keeps the world", "[launch]") {
  WorldPool pool(toy_workers());
  const auto first = pids_of(pool.run_case(toy_case("gloo", 2), -1, false));
  const auto refused =
      pool.run_case(toy_case("gloo", 2, {{"rank 0", "refuse"}, {"rank 1", "refuse"}}), -1, false);
  CHECK(refused[0].kind == ResultKind::kRefused);
  CHECK(refused[1].message == "toy refusal");
  CHECK(pids_of(pool.run_case(toy_case("gloo", 2), -1, false)) == first);
}

TEST_CASE("the rank that died is named with how and with its last words", "[launch]") {
  const SharedCount met;
  WorldPool pool(toy_workers(met.get()));
  int waits = 0;
  const std::map<std::string, std::string> facts = {{"segv", "was killed by SIGSEGV"},
                                                    {"sigkill", "was killed by SIGKILL"},
                                                    {"exit3", "exited with status 3"},
                                                    {"abort", "was killed by SIGABRT"}};
  for (const auto& [act, fact] : facts) {
    INFO(act);
    waits += 2;
    CaseSpec spec =
        toy_case("gloo", 3,
                 {{"rank 0", "wait"}, {"rank 1", act}, {"rank 2", "wait"}, {"after waits", waits}});
    spec.world.hang_s = 20;
    const auto endings = pool.run_case(spec, -1, false);
    CHECK(endings[1].kind == ResultKind::kDied);
    CHECK_THAT(endings[1].message, Catch::Contains(fact) && Catch::Contains("rank 1 does " + act));
    CHECK_THAT(endings[1].last_call, Catch::Contains("toy call 0"));
    CHECK_THAT(endings[1].printed, Catch::Contains("rank 1 does " + act));
    CHECK(endings[0].printed == "rank 0 does wait");
    for (const size_t other : {0, 2}) {
      CHECK(endings[other].kind == ResultKind::kAborted);
      CHECK_THAT(endings[other].message,
                 Catch::Contains("rank 1 ended as died") && Catch::Contains("all_reduce"));
      CHECK_THAT(endings[other].last_call, Catch::Contains("toy call 1"));
    }
    for (const RankEnding& ending : endings) {  // before the hang rule applies
      CHECK_THAT(ending.message, !Catch::Contains("no rank entered a collective"));
    }
  }
  const auto whole = pool.run_case(toy_case("gloo", 3), -1, false);
  CHECK(whole[1].kind == ResultKind::kFinished);
  CHECK(whole[1].printed == "");
}

TEST_CASE("each rank of a case that fails has its own ending, and the next case runs", "[launch]") {
  using enum ResultKind;
  struct Failing {
    std::string backend;
    std::vector<std::string> acts;  // by rank
    std::vector<ResultKind> kinds;  // by rank; kNone: any
    size_t told;                    // the rank whose message has the words
    std::string words;
  };
  const std::string by_the_hang_rule = "for 0.4 s no rank entered a collective";
  const std::string by_the_deadline = "did not end within its deadline of 1 s";
  const Failing cases[] = {
      {"gloo", {"refuse", "wait"}, {kRefused, kAborted}, 0, "toy refusal"},
      {"gloo", {"wait", "wait", "throw"}, {kAborted, kAborted, kThrew}, 2, "toy error"},
      // The one that sleeps outside of any collective, not those who wait.
      {"gloo", {"wait", "sleep", "wait"}, {kAborted, kHung, kAborted}, 1, by_the_hang_rule},
      {"emulated", {"wait", "sleep", "wait"}, {kAborted, kHung, kAborted}, 1, by_the_hang_rule},
      {"gloo", {"loop", "wait"}, {kHung, kAborted}, 0, by_the_deadline},
      {"emulated", {"loop", "wait"}, {kNone, kAborted}, 1, by_the_deadline},
      {"emulated", {"deaf", "echo"}, {kHung, kNone}, 0, ""},  // it is killed
      // At once, before the hang rule applies to the third.
      {"gloo",
       {"wait", "gather", "sleep"},
       {kDisagreement, kDisagreement, kAborted},
       0,
       "op all_reduce against all_gather"},
  };
  WorldPool pool(toy_workers());
  for (const Failing& failing : cases) {
    const auto size = static_cast<int64_t>(failing.acts.size());
    CaseSpec spec = toy_case(failing.backend, size);
    for (size_t rank = 0; rank < failing.acts.size(); ++rank) {
      spec.options["rank " + std::to_string(rank)] = failing.acts[rank];
    }
    if (failing.acts[0] == "loop") spec.world.deadline_s = 1;
    if (failing.acts[1] == "gather") spec.world.hang_s = 60;
    INFO(failing.backend << " " << spec.options);
    const auto endings = pool.run_case(spec, -1, false);
    for (size_t rank = 0; rank < failing.kinds.size(); ++rank) {
      if (failing.kinds[rank] != kNone) CHECK(endings[rank].kind == failing.kinds[rank]);
    }
    CHECK_THAT(endings[failing.told].message, Catch::Contains(failing.words));
    CHECK(pool.run_case(toy_case(failing.backend, size), -1, false)[0].kind == kFinished);
  }
}

TEST_CASE("the last lines of a dead process are in its message and kept for the log", "[launch]") {
  WorldPool pool(toy_workers());
  for (const std::string backend : {"gloo", "emulated"}) {
    INFO(backend);
    const CaseSpec spec = toy_case(backend, 2, {{"rank 0", "wait"}, {"rank 1", "last words"}});
    const auto endings = pool.run_case(spec, -1, false);
    // The ranks of an emulated world share one stream.
    const RankEnding& dead = endings[backend == "gloo" ? 1 : 0];
    CHECK(dead.kind == ResultKind::kDied);
    CHECK_THAT(dead.message, Catch::Contains("one <b>\ntwo & more\nthree"));
    CHECK_THAT(dead.printed, Catch::Contains("one <b>\ntwo & more\nthree"));
  }
}

TEST_CASE("a crash in an emulated world names the rank whose thread it was", "[launch]") {
  WorldPool pool(toy_workers());
  const auto endings = pool.run_case(
      toy_case("emulated", 3, {{"rank 2", "segv"}, {"rank 0", "wait"}, {"rank 1", "wait"}}), -1,
      false);
  CHECK(endings[2].kind == ResultKind::kDied);
  CHECK_THAT(endings[2].message, Catch::Contains("was killed by SIGSEGV on the thread of rank 2"));
  CHECK_THAT(endings[2].printed, Catch::Contains("rank 2 does segv"));  // ranks share one stream
  CHECK(endings[0].kind == ResultKind::kAborted);
  CHECK(endings[0].printed == "");
  const auto killed = pool.run_case(toy_case("emulated", 2, {{"rank 1", "sigkill"}}), -1, false);
  CHECK(killed[1].kind == ResultKind::kDied);
  CHECK(pool.run_case(toy_case("emulated", 3), -1, false)[0].kind == ResultKind::kFinished);
}

TEST_CASE("a golden runs in a worker of its own and stays warm", "[launch]") {
  WorldPool pool(toy_workers());
  const OwnedFd golden(::memfd_create("golden", MFD_CLOEXEC));
  const TaskOutcome first =
      pool.run_golden(toy_case("gloo", 1), golden::Members::kDue, golden.get(), "d");
  CHECK(first.ok);
  char blob[32] = {};
  CHECK(::pread(golden.get(), blob, sizeof(blob), 0) == 13);
  CHECK(std::string(blob) == "golden of toy");
  CHECK(first.golden.tensors == 1);  // the toy tells the length of the path and its process
  CHECK(first.golden.bytes > 0);
  CHECK(
      pool.run_golden(toy_case("gloo", 1), golden::Members::kDue, golden.get(), "d").golden.bytes ==
      first.golden.bytes);

  const auto outcome = [&](const std::string& act, double deadline_s = 20) {
    CaseSpec spec = toy_case("gloo", 1, {{"golden", act}});
    spec.world.deadline_s = deadline_s;
    return pool.run_golden(spec, golden::Members::kDue, golden.get(), "");
  };
  CHECK(outcome("bad").kind == ResultKind::kBadInput);
  CHECK(outcome("bad").message == "toy fact; toy fix");
  CHECK(outcome("throw").kind == ResultKind::kInternal);
  CHECK(outcome("segv").kind == ResultKind::kDied);
  CHECK(outcome("loop", 0.2).kind == ResultKind::kHung);
  CHECK(outcome("echo").ok);
}

TEST_CASE("cases run side by side, each with its own world", "[launch]") {
  constexpr int kCases = 6;
  const SharedCount met;
  WorldPool pool(toy_workers(met.get()));
  std::set<std::string> pids;
  int ended = 0;
  for (int i = 0; i < kCases; ++i) {
    CaseSpec spec =
        toy_case(i % 2 ? "gloo" : "emulated", 2, {{"rank 1", "meet"}, {"to meet", kCases}});
    spec.world.hang_s = 20;  // of the first case, where they run one after the other
    spec.world.deadline_s = 60;
    pool.start_case(spec, -1, false, [&pids, &ended](WorldRun run) {
      INFO(run.endings[1].message);
      CHECK(run.endings[1].kind == ResultKind::kFinished);
      pids.insert(run.endings[1].bytes);
      ++ended;
      return true;
    });
  }
  pool.wait_until([&] { return ended == kCases; });
  CHECK(pids.size() == kCases);
}

TEST_CASE("crash after crash leaves no descriptor and no process behind", "[launch]") {
  WorldPool pool(toy_workers());
  const auto round = [&] {
    pool.run_case(toy_case("gloo", 3, {{"rank 1", "segv"}, {"rank 0", "wait"}}), -1, false);
    pool.run_case(toy_case("emulated", 3, {{"rank 1", "exit3"}}), -1, false);
  };
  for (int i = 0; i < 3; ++i) round();
  const size_t before = count_entries("/proc/self/fd");
  for (int i = 0; i < 30; ++i) round();
  CHECK(count_entries("/proc/self/fd") <= before + 6);  // workers that are still being reaped
}

}  // namespace
}  // namespace shardproof::sim::world
