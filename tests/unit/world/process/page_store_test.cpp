// The store in shared pages: all writers have one order, and readers wait for missing keys.
#include "sim/world/process/page_store.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <set>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "sim/world/process/owned_fd.h"

namespace shardproof::sim {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

OwnedFd pages_of(off_t bytes) {
  OwnedFd pages(::memfd_create("pages", MFD_CLOEXEC));
  REQUIRE(::ftruncate(pages.get(), bytes) == 0);
  return pages;
}

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

TEST_CASE("what one store writes, another on the same pages reads", "[page_store]") {
  const OwnedFd pages = pages_of(1 << 20);
  const StorePtr one = make_page_store(pages.get());
  const StorePtr two = make_page_store(pages.get());
  one->set("key", std::string("first"));
  CHECK(two->get_to_str("key") == "first");
  two->set("key", std::string(1000, 'x'));  // any length, also over an older value
  CHECK(one->get_to_str("key") == std::string(1000, 'x'));
  one->set("empty", std::string());
  CHECK(two->get_to_str("empty").empty());
  CHECK(two->check({"key", "empty"}));
  CHECK_FALSE(two->check({"key", "neither"}));
  CHECK(two->getNumKeys() == 2);
  CHECK(two->deleteKey("key"));
  CHECK_FALSE(one->deleteKey("key"));
  CHECK_FALSE(one->check({"key"}));
  CHECK(make_page_store(pages.get())->getNumKeys() == 1);  // a later reader has the same content
  CHECK(one->clone()->get_to_str("empty").empty());
}

TEST_CASE("compareSet is as in the other stores of c10d", "[page_store]") {
  const OwnedFd pages = pages_of(1 << 20);
  const StorePtr page_store = make_page_store(pages.get());
  const StorePtr hash_store = make_hash_store();
  for (const StorePtr& store : {page_store, hash_store}) {
    const auto swap = [&](const std::string& key, const std::string& expected,
                          const std::string& value) {
      const auto now = store->compareSet(key, bytes_of(expected), bytes_of(value));
      return std::string(now.begin(), now.end());
    };
    CHECK(swap("key", "something", "a") == "something");  // the key is missing: nothing is written
    CHECK_FALSE(store->check({"key"}));
    CHECK(swap("key", "", "a") == "a");
    CHECK(swap("key", "b", "c") == "a");
    CHECK(swap("key", "a", "c") == "c");
    CHECK(store->get_to_str("key") == "c");
  }
}

TEST_CASE("counts of many processes and threads at once are each given once", "[page_store]") {
  const OwnedFd pages = pages_of(8 << 20);
  constexpr int kProcesses = 3, kThreads = 3, kCounts = 200;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child > 0) {
      children.push_back(child);
      continue;
    }
    const StorePtr store = make_page_store(pages.get());
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&store] {
        for (int i = 0; i < kCounts; ++i) {
          const int64_t got = store->add("count", 1);
          store->set(fmt::format("got {}", got), std::string("1"));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ::_exit(0);
  }
  for (const pid_t child : children) {
    int status = -1;
    REQUIRE(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
  }
  const StorePtr store = make_page_store(pages.get());
  constexpr int64_t kTotal = int64_t{kProcesses} * kThreads * kCounts;
  CHECK(store->add("count", 0) == kTotal);
  CHECK(store->getNumKeys() == kTotal + 1);  // all numbers differ
}

TEST_CASE("a wait ends when the last key is written, or with its time", "[page_store]") {
  const OwnedFd pages = pages_of(1 << 20);
  const StorePtr store = make_page_store(pages.get());
  const auto start = steady_clock::now();
  CHECK_THROWS_WITH(store->wait({"never"}, milliseconds(30)), Catch::Contains("'never'"));
  CHECK(steady_clock::now() - start >= milliseconds(30));
  std::thread writer([fd = pages.get()] {
    const StorePtr other = make_page_store(fd);
    other->set("a", std::string("1"));
    std::this_thread::sleep_for(milliseconds(50));
    other->set("b", std::string("2"));
  });
  store->wait({"a", "b"}, milliseconds(20'000));
  CHECK(store->get_to_str("b") == "2");
  writer.join();
}

// Forks a process that dies during a write, because the pages end before the value does.
void die_while_writing(int pages) {
  const pid_t writer = ::fork();
  REQUIRE(writer >= 0);
  if (writer == 0) {
    ::signal(SIGBUS, SIG_DFL);
    const StorePtr store = make_page_store(pages);
    if (::ftruncate(pages, 1 << 16) == 0) store->set("large", std::string(1 << 19, 'x'));
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(writer, &status, 0) == writer);
  REQUIRE(WIFSIGNALED(status));
  REQUIRE(WTERMSIG(status) == SIGBUS);
}

TEST_CASE("a writer that dies in the middle of a write blocks nobody", "[page_store]") {
  const OwnedFd pages = pages_of(1 << 20);
  make_page_store(pages.get())->set("before", std::string("first"));
  die_while_writing(pages.get());
  REQUIRE(::ftruncate(pages.get(), 1 << 20) == 0);
  const pid_t next = ::fork();
  REQUIRE(next >= 0);
  if (next == 0) {
    const StorePtr store = make_page_store(pages.get());
    store->set("after", std::string("second"));
    const bool right = store->add("count", 2) == 2 && store->get_to_str("before") == "first" &&
                       store->get_to_str("after") == "second" && !store->check({"large"});
    ::_exit(right ? 0 : 1);
  }
  int status = -1;
  pid_t ended = 0;
  const auto until = steady_clock::now() + std::chrono::seconds(20);
  while (ended == 0 && steady_clock::now() < until) {
    ended = ::waitpid(next, &status, WNOHANG);
    std::this_thread::sleep_for(milliseconds(2));
  }
  if (ended == 0) {  // the child still waits
    ::kill(next, SIGKILL);
    ::waitpid(next, &status, 0);
  }
  CHECK(ended == next);
  CHECK(status == 0);
}

TEST_CASE("pages that are full say so, and keep what they hold", "[page_store]") {
  const OwnedFd pages = pages_of(4096);
  const StorePtr store = make_page_store(pages.get());
  store->set("kept", std::string(100, 'k'));
  CHECK_THROWS_AS(store->set("too long", std::string(4096, 'x')), InternalError);
  CHECK(store->get_to_str("kept") == std::string(100, 'k'));
  CHECK_FALSE(store->check({"too long"}));
  int written = 0;
  CHECK_THROWS_AS(
      [&] {
        for (;; ++written) store->set("again", std::to_string(written));
      }(),
      InternalError);
  CHECK(written > 10);
  CHECK(make_page_store(pages.get())->get_to_str("again") == std::to_string(written - 1));
  const OwnedFd none;
  CHECK_THROWS_AS(make_page_store(none.get()), InternalError);
}

}  // namespace
}  // namespace shardproof::sim
