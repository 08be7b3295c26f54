// Processes of a launcher that are killed or stopped from outside.
// (tests/multirank/endings_test.py: no process of a launcher outlives it.)
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/owned_fd.h"
#include "sim/world/launch/world_pool.h"
#include "tests/unit/world/launch/toy_workers.h"

namespace shardproof::sim::world {
namespace {

// All processes below `root`, except zombies.
std::set<pid_t> descendants(pid_t root) {
  std::set<pid_t> found = {root};
  for (bool grew = true; grew;) {
    grew = false;
    for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      std::ifstream file(entry.path() / "stat");
      std::string line;
      std::getline(file, line);
      const size_t end = line.rfind(')');
      if (end == std::string::npos) continue;
      char state = 0;
      int parent = 0;
      if (std::sscanf(line.c_str() + end + 1, " %c %d", &state, &parent) != 2 || state == 'Z')
        continue;
      if (found.count(parent) && found.insert(std::stoi(name)).second) grew = true;
    }
  }
  found.erase(root);
  return found;
}

// Waits long enough for a slow machine; a condition that never holds takes the whole time.
bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 6000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

// Whether these processes, which became ours when their parent ended, have ended too.
bool all_reaped(const std::set<pid_t>& pids) {
  while (::waitpid(-1, nullptr, WNOHANG) > 0) {
  }
  return std::none_of(pids.begin(), pids.end(), [](pid_t pid) { return ::kill(pid, 0) == 0; });
}

// The zygote, as long as the pool has no workers.
pid_t only_child() {
  const std::set<pid_t> children = descendants(::getpid());
  REQUIRE(children.size() == 1);
  return *children.begin();
}

// Rank 0's ending of a case whose zygote gets a signal while both ranks work. The next one runs.
RankEnding ending_with_zygote_sent(int signal) {
  const SharedCount deaf;
  WorldPool pool(toy_workers(deaf.get()));
  const pid_t zygote = only_child();
  std::thread sender([&] {
    eventually([&] { return *deaf.get() == 2; });
    ::kill(zygote, signal);
  });
  CaseSpec spec = toy_case("gloo", 2, {{"rank 0", "deaf"}, {"rank 1", "deaf"}});
  spec.world.hang_s = 60;  // the signal comes first, however busy the machine
  const auto endings = pool.run_case(spec, -1, false);
  sender.join();
  CHECK(pool.run_case(toy_case("gloo", 2), -1, false)[0].kind == ResultKind::kFinished);
  return endings[0];
}

TEST_CASE("when the zygote is killed the case fails and the next one has a new zygote",
          "[launch][orphan]") {
  const RankEnding ending = ending_with_zygote_sent(SIGKILL);
  CHECK(ending.kind != ResultKind::kFinished);
  CHECK_THAT(ending.message, Catch::Contains("the process that forks workers has gone"));
}

TEST_CASE("when the zygote is killed or stays stopped before it forks, another one forks",
          "[launch][orphan]") {
  for (const bool kill : {false, true}) {
    for (const bool golden : {false, true}) {
      WorldPool pool(toy_workers());
      const pid_t zygote = only_child();
      ::kill(zygote, SIGSTOP);  // it exists, but starts no worker
      std::thread killer([kill, zygote] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        if (kill) ::kill(zygote, SIGKILL);
      });
      if (golden) {
        const OwnedFd blob(::memfd_create("golden", 0));
        CHECK(pool.run_golden(toy_case("gloo", 2), golden::Members::kDue, blob.get(), "").ok);
      }
      CHECK(pool.run_case(toy_case("gloo", 2), -1, false)[1].kind == ResultKind::kFinished);
      killer.join();
    }
  }
}

TEST_CASE("a zygote that is stopped holds no case up", "[launch][orphan]") {
  const RankEnding ending = ending_with_zygote_sent(SIGSTOP);
  CHECK(ending.kind == ResultKind::kDied);
  CHECK_THAT(ending.message,
             Catch::Contains("the process that forks workers was stopped by a signal"));
}

TEST_CASE("a golden hears that the zygote has gone though other cases have a new one",
          "[launch][orphan]") {
  WorldPool pool(toy_workers());
  const pid_t zygote = only_child();
  const CaseSpec endless = toy_case("gloo", 2, {{"golden", "loop"}});
  ResultKind golden_kind = ResultKind::kNone;
  pool.start_golden(endless, golden::Members::kDue, STDERR_FILENO, "",
                    [&](const TaskOutcome& outcome) { golden_kind = outcome.kind; });
  ::kill(zygote, SIGKILL);
  int ended = 0, finished = 0;
  for (int i = 0; i < 2; ++i) {  // the loop is not served between them
    pool.start_case(toy_case("gloo", 2), -1, true, [&](const WorldRun& run) {
      ++ended;
      finished += run.endings[0].kind == ResultKind::kFinished;
      return false;
    });
  }
  pool.wait_until([&] { return ended == 2 && golden_kind != ResultKind::kNone; });
  CHECK(finished == 2);
  CHECK(golden_kind == ResultKind::kDied);
}

TEST_CASE("a golden that is stopped fails, and the next one runs", "[launch][orphan]") {
  WorldPool pool(toy_workers());
  const pid_t zygote = only_child();
  std::thread stopper([&] {
    eventually([] { return descendants(::getpid()).size() == 2; });
    for (const pid_t pid : descendants(::getpid())) {
      if (pid != zygote) ::kill(pid, SIGSTOP);
    }
  });
  const OwnedFd blob(::memfd_create("golden", 0));
  const CaseSpec endless = toy_case("gloo", 2, {{"golden", "loop"}});
  const TaskOutcome outcome = pool.run_golden(endless, golden::Members::kDue, blob.get(), "");
  stopper.join();
  CHECK(outcome.kind == ResultKind::kDied);
  CHECK_THAT(outcome.message, Catch::Contains("stopped by a signal"));
  CHECK(pool.run_golden(toy_case("gloo", 2), golden::Members::kDue, blob.get(), "").ok);
}

TEST_CASE("a rank that is stopped is the hung one, not those who wait for it", "[launch][orphan]") {
  WorldPool pool(toy_workers());
  const pid_t first = std::stoi(pool.run_case(toy_case("gloo", 2), -1, false)[1].bytes);
  ::kill(first, SIGSTOP);
  const auto endings = pool.run_case(toy_case("gloo", 2, {{"rank 0", "wait"}}), -1, false);
  CHECK(endings[0].kind == ResultKind::kAborted);
  CHECK(endings[1].kind == ResultKind::kHung);
  CHECK_THAT(endings[1].message, Catch::Contains("its process is stopped by a signal"));
}

TEST_CASE("signals end the workers of a second zygote as those of the first", "[launch][orphan]") {
  WorldPool pool(toy_workers());
  ::kill(only_child(), SIGKILL);
  const auto endings = pool.run_case(toy_case("gloo", 2), -1, false);
  REQUIRE(endings[1].kind == ResultKind::kFinished);
  const pid_t rank = std::stoi(endings[1].bytes);
  ::kill(rank, SIGTERM);
  CHECK(eventually([&] { return ::kill(rank, 0) != 0; }));
  CHECK_FALSE(pool.interrupted());
}

TEST_CASE("a second Ctrl-C ends a launcher at once that is busy", "[launch][orphan]") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    WorldPool pool(toy_workers());
    pool.run_case(toy_case("gloo", 2), -1, false);
    for (;;) ::pause();  // it serves nothing
  }
  REQUIRE(eventually([&] { return descendants(launcher).size() == 3; }));
  const std::set<pid_t> family = descendants(launcher);
  int status = 0;
  for (int i = 0; i < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    CHECK(::waitpid(launcher, &status, WNOHANG) == 0);
    ::kill(launcher, SIGINT);
  }
  REQUIRE(eventually([&] { return ::waitpid(launcher, &status, WNOHANG) == launcher; }));
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 130);
  CHECK(eventually([&] { return all_reaped(family); }));
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_CASE("a rank that leaves before it is asked is noticed", "[launch][orphan]") {
  WorldPool pool(toy_workers());
  const auto first = pool.run_case(toy_case("gloo", 2), -1, false);
  ::kill(std::stoi(first[1].bytes), SIGKILL);
  const auto second = pool.run_case(toy_case("gloo", 2), -1, false);
  const bool made_anew =
      second[1].kind == ResultKind::kFinished && second[1].bytes != first[1].bytes;
  INFO(name_of(second[1].kind) << " " << second[1].message);
  CHECK((second[1].kind == ResultKind::kDied || made_anew));
  CHECK(pool.run_case(toy_case("gloo", 2), -1, false)[1].kind == ResultKind::kFinished);
}

}  // namespace
}  // namespace shardproof::sim::world
