// The store in shared pages: all writers have one order, and readers wait for missing keys.
#include "sim/world/process/page_store.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "base/error.h"
#include "base/owned_fd.h"

namespace shardproof::sim::world {
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

// A process that does this and exits with 0 if it was right.
pid_t fork_for(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(work() ? 0 : 1);
  return child;
}

// As waitpid tells it; a child that still waits after 20 s is killed.
int status_of(pid_t child) {
  int status = -1;
  const auto until = steady_clock::now() + std::chrono::seconds(20);
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (steady_clock::now() > until) ::kill(child, SIGKILL);
    std::this_thread::sleep_for(milliseconds(2));
  }
  return status;
}

TEST_CASE("counts of many processes and threads at once are each given once", "[page_store]") {
  const OwnedFd pages = pages_of(8 << 20);
  constexpr int kProcesses = 3, kThreads = 3, kCounts = 200;
  std::vector<pid_t> children;
  for (int process = 0; process < kProcesses; ++process) {
    children.push_back(fork_for([&] {
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
      return true;
    }));
  }
  for (const pid_t child : children) CHECK(status_of(child) == 0);
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

TEST_CASE("a writer that dies in the middle of a write blocks nobody", "[page_store]") {
  const OwnedFd pages = pages_of(1 << 20);
  make_page_store(pages.get())->set("before", std::string("first"));
  const int death = status_of(fork_for([&] {
    ::signal(SIGBUS, SIG_DFL);
    const StorePtr store = make_page_store(pages.get());
    // The pages end before the value does.
    if (::ftruncate(pages.get(), 1 << 16) == 0) store->set("large", std::string(1 << 19, 'x'));
    return true;
  }));
  REQUIRE(WIFSIGNALED(death));
  REQUIRE(WTERMSIG(death) == SIGBUS);
  REQUIRE(::ftruncate(pages.get(), 1 << 20) == 0);
  CHECK(status_of(fork_for([&] {
          const StorePtr store = make_page_store(pages.get());
          store->set("after", std::string("second"));
          return store->add("count", 2) == 2 && store->get_to_str("before") == "first" &&
                 store->get_to_str("after") == "second" && !store->check({"large"});
        })) == 0);
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
}  // namespace shardproof::sim::world
