// No process of a launcher outlives it, however it ends. Each test forks a launcher.
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "sim/world/launch/world_pool.h"
#include "sim/world/process/owned_fd.h"
#include "tests/unit/world/launch/toy_workers.h"

namespace shardproof::sim {
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
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return condition();
}

bool all_gone(const std::set<pid_t>& pids) {
  for (const pid_t pid : pids) {
    if (::kill(pid, 0) == 0) return false;
  }
  return true;
}

// A launcher that runs one case and exits with 130 when it was interrupted, else with 0.
pid_t fork_launcher(const CaseSpec& spec) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  int status = 0;
  {
    WorldPool pool(toy_workers());
    pool.run_case(toy_case("emulated", 2), -1, false);  // leaves a warm world
    pool.run_case(spec, -1, false);
    status = pool.interrupted() ? 130 : 0;
    if (descendants(::getpid()).empty()) status = 99;  // the warm world and the zygote must exist
  }
  if (!descendants(::getpid()).empty()) status = 98;
  ::_exit(status);
}

CaseSpec endless_case(const std::string& backend) {
  CaseSpec spec =
      toy_case(backend, 3, {{"rank 0", "deaf"}, {"rank 1", "loop"}, {"rank 2", "wait"}});
  spec.world.deadline_s = 60;
  return spec;
}

TEST_CASE("a launcher killed by SIGKILL leaves no process", "[launch][orphan]") {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // orphans of the launcher become our children
  for (const std::string backend : {"gloo", "emulated"}) {
    INFO(backend);
    const pid_t launcher = fork_launcher(endless_case(backend));
    const size_t expected = backend == "gloo" ? 5 : 3;  // zygote, warm world, ranks
    REQUIRE(eventually([&] { return descendants(launcher).size() == expected; }));
    const std::set<pid_t> family = descendants(launcher);
    ::kill(launcher, SIGKILL);
    CHECK(eventually([&] {
      while (::waitpid(-1, nullptr, WNOHANG) > 0) {
      }
      return all_gone(family);
    }));
  }
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
}

TEST_CASE("Ctrl-C ends the case, the worlds and the launcher", "[launch][orphan]") {
  for (const int signal : {SIGINT, SIGTERM}) {
    for (const std::string backend : {"gloo", "emulated"}) {
      const pid_t launcher = fork_launcher(endless_case(backend));
      const size_t expected = backend == "gloo" ? 5 : 3;
      REQUIRE(eventually([&] { return descendants(launcher).size() == expected; }));
      const std::set<pid_t> family = descendants(launcher);
      ::kill(launcher, signal);
      int status = 0;
      ::waitpid(launcher, &status, 0);
      REQUIRE(WIFEXITED(status));
      CHECK((WEXITSTATUS(status) == 130 || WEXITSTATUS(status) == 99));
      CHECK(WEXITSTATUS(status) == 130);
      CHECK(all_gone(family));
    }
  }
}

TEST_CASE("when the zygote is killed the case fails and the next one has a new zygote",
          "[launch][orphan]") {
  WorldPool pool(toy_workers());
  const std::set<pid_t> zygote = descendants(::getpid());
  REQUIRE(zygote.size() == 1);
  std::thread killer([&] {
    eventually([] { return descendants(::getpid()).size() == 3; });
    ::kill(*zygote.begin(), SIGKILL);
  });
  const auto endings =
      pool.run_case(toy_case("gloo", 2, {{"rank 0", "deaf"}, {"rank 1", "deaf"}}), -1, false);
  killer.join();
  CHECK(endings[0].kind != ResultKind::kFinished);
  CHECK_THAT(endings[0].message, Catch::Contains("the process that forks workers has gone"));
  CHECK(pool.run_case(toy_case("gloo", 2), -1, false)[0].kind == ResultKind::kFinished);
}

TEST_CASE("when the zygote is killed before it forks, the case or the golden fails, and no more",
          "[launch][orphan]") {
  for (const bool golden : {false, true}) {
    WorldPool pool(toy_workers());
    const std::set<pid_t> zygote = descendants(::getpid());
    REQUIRE(zygote.size() == 1);
    ::kill(*zygote.begin(), SIGSTOP);  // it exists but starts no worker
    std::thread killer([pid = *zygote.begin()] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      ::kill(pid, SIGKILL);
    });
    const std::string why =
        golden ? pool.run_golden(to_json(toy_case("gloo", 2)).dump(), -1, "").message
               : pool.run_case(toy_case("gloo", 2), -1, false)[1].message;
    killer.join();
    CHECK_THAT(why, Catch::Contains("the process that forks workers has gone"));
    CHECK(pool.run_case(toy_case("gloo", 2), -1, false)[0].kind == ResultKind::kFinished);
  }
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
}  // namespace shardproof::sim
