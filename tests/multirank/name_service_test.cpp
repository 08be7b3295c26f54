// Worlds of processes on one host start without the name service, which may take seconds to answer,
// so that all worlds that are starting would look hung.
#include <dlfcn.h>
#include <netdb.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <thread>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "tests/multirank/small_ranks.h"

namespace {

// Forked workers inherit it.
bool name_service_is_slow = false;
std::atomic<int> names_asked_for = 0;

}  // namespace

// Replaces the C library's function, for LibTorch too.
extern "C" __attribute__((visibility("default"))) int getnameinfo(
    const sockaddr* address, socklen_t address_bytes, char* host, socklen_t host_bytes,
    char* service, socklen_t service_bytes, int flags) {
  using Function = int (*)(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int);
  static const auto next = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "getnameinfo"));
  if (name_service_is_slow && (flags & NI_NUMERICHOST) == 0) {
    ++names_asked_for;
    std::this_thread::sleep_for(std::chrono::seconds(3));
  }
  return next(address, address_bytes, host, host_bytes, service, service_bytes,
              flags | (name_service_is_slow ? NI_NUMERICHOST : 0));
}

namespace shardproof::sim::world {
namespace {

class SlowNameService {
 public:
  SlowNameService() { name_service_is_slow = true; }
  ~SlowNameService() { name_service_is_slow = false; }
};

TEST_CASE("several worlds at once are made however slow the name service is", "[multirank]") {
  const SlowNameService slow;
  WorldPool pool(small_workers());
  constexpr int kWorlds = 4;
  std::vector<std::string> kinds;
  size_t done = 0;
  for (int world = 0; world < kWorlds; ++world) {
    pool.start_case(small_case("gloo", 2 + world % 2), -1, true, [&](WorldRun run) {
      for (const RankEnding& ending : run.endings)
        kinds.push_back(name_of(ending.kind) + ending.message);
      ++done;
      return true;
    });
  }
  pool.wait_until([&] { return done == kWorlds; });
  CHECK(kinds == std::vector<std::string>(10, "finished"));
}

// Proves that the test above can fail. It runs in a separate process: the store starts threads, and
// worlds are forked from this one.
TEST_CASE("c10d's store over TCP does ask it", "[multirank]") {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    name_service_is_slow = true;
    c10d::TCPStoreOptions options;
    options.port = 0;
    options.isServer = true;
    const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
    ::_exit(names_asked_for > 0 ? 7 : 0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 7);
}

}  // namespace
}  // namespace shardproof::sim::world
