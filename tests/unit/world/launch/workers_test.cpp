// A worker's end is reported at any moment of control's work.
#include "sim/world/launch/workers.h"

#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <thread>

#include "tests/unit/world/launch/toy_workers.h"

namespace shardproof::sim::world {
namespace {

bool is_reaped(pid_t pid) { return ::kill(pid, 0) != 0; }

TEST_CASE("a worker that ends while another is started is told at once", "[launch]") {
  boost::asio::io_context io{1};
  const WorkerFunctions functions = toy_workers();
  Workers workers(io, functions);
  const WorkerSetup setup{.is_golden = true};
  const auto first = workers.start(setup, {});
  std::string how;
  first->start({.on_frame = {}, .on_exit = [&how](const std::string& text) { how = text; }});
  REQUIRE(::kill(first->pid(), SIGKILL) == 0);
  for (int i = 0; i < 20'000 && !is_reaped(first->pid()); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  REQUIRE(is_reaped(first->pid()));  // the zygote sends its notice before that of the second
  const auto second = workers.start(setup, {});
  for (int i = 0; i < 200 && how.empty(); ++i) io.run_for(std::chrono::milliseconds(100));
  CHECK_THAT(how, Catch::Contains("SIGKILL"));
  CHECK(first->ended());
  CHECK_FALSE(second->ended());
}

TEST_CASE("a rank of another launcher that sends no heartbeats is not runnable", "[launch]") {
  boost::asio::io_context io{1};
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
  const OwnedFd silent(ends[1]);
  const Seals seals{.out = FrameSeal({}), .in = FrameSeal({})};
  WorkerProcess rank(io, {.name = "rank 1", .same_host = true, .seals = seals}, OwnedFd(ends[0]));
  CHECK(rank.runnable());
  std::this_thread::sleep_for(std::chrono::milliseconds(3100));
  CHECK_FALSE(rank.runnable());
}

}  // namespace
}  // namespace shardproof::sim::world
