// No call line through shared memory is lost or out of order.
#include "sim/world/process/call_lines.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <string>
#include <thread>

namespace shardproof::sim::world {
namespace {

OwnedFd same(const CallLines& lines) { return OwnedFd(::fcntl(lines.fd(), F_DUPFD_CLOEXEC, 0)); }

// Lines differ; their lengths do not divide the ring, and some exceed it.
std::string line_number(int64_t number) {
  const auto length = static_cast<size_t>(number % 97 == 13 ? 200'000 : 1 + number * 37 % 301);
  return std::to_string(number) + std::string(length, static_cast<char>('a' + number % 26));
}

TEST_CASE("lines arrive whole and in order, also when the ring is full or a line is longer",
          "[launch][call_lines]") {
  constexpr int64_t kLines = 3000;
  CallLines control(2);
  std::thread writer([&control] {
    CallLines rank(same(control), 2);
    for (int64_t number = 0; number < kLines; ++number) rank.put(1, line_number(number));
  });
  int64_t wrong = 0;
  for (int64_t number = 0; number < kLines;) {
    const auto line = control.take(1);
    if (!line) continue;
    if (*line != line_number(number++)) ++wrong;
  }
  writer.join();
  CHECK(wrong == 0);
  CHECK_FALSE(control.take(1));
  CHECK_FALSE(control.take(0));
}

TEST_CASE("what a rank put before it was killed stays; half a line is none",
          "[launch][call_lines]") {
  CallLines control(3);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const OwnedFd told(ends[0]), tells(ends[1]);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    CallLines rank(same(control), 3);
    rank.put(2, "first");
    rank.put(2, "");
    rank.put(2, "third");
    if (::write(tells.get(), "3", 1) != 1) ::_exit(1);
    rank.put(2, std::string(3 * CallLines::kRingBytes, 'x'));  // waits for a reader
    ::_exit(0);
  }
  char third = 0;
  REQUIRE(::read(told.get(), &third, 1) == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // probably half a line is written
  REQUIRE(::kill(child, SIGKILL) == 0);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(control.take(2) == "first");
  CHECK(control.take(2) == "");
  CHECK(control.take(2) == "third");
  CHECK_FALSE(control.take(2));
  control.clear();
  CallLines rank(same(control), 3);
  rank.put(2, "of the next case");
  CHECK(control.take(2) == "of the next case");
}

}  // namespace
}  // namespace shardproof::sim::world
