// Worker functions without tensors and network, whose ranks act as the case's options say.
//
//   options: {"rank 1": "segv"}   the act of a rank; the default is "echo"
//            {"rank 1": "meet", "to meet": 6}   waits for so many ranks, of any cases
#pragma once

#include <poll.h>
#include <sys/mman.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "sim/case/case_spec.h"
#include "sim/world/process/worker_functions.h"

namespace shardproof::sim::world {

inline CallLine world_call(int64_t rank, int64_t world_size, int64_t sequence, Op op) {
  std::vector<int64_t> ranks;
  for (int64_t member = 0; member < world_size; ++member) ranks.push_back(member);
  CallLine line;
  line.rank = rank;
  line.group_ranks = std::make_shared<const std::vector<int64_t>>(ranks);
  line.group = "world";
  line.group_rank = rank;
  line.sequence = sequence;
  line.op = op;
  line.label = "toy call " + std::to_string(sequence);
  line.dtype = "float64";
  line.shape = {3};
  line.strides = {1};
  return line;
}

class ToyWorld {
 public:
  ToyWorld(WorldSetup setup, std::atomic<int>* met) : setup_(std::move(setup)), met_(met) {}

  std::vector<RankEnding> run(const CaseSpec& spec) {
    aborted_ = false;
    if (setup_.rank >= 0) return {one_rank(setup_.rank, spec)};
    std::vector<RankEnding> endings(static_cast<size_t>(setup_.world_size));
    std::vector<std::thread> threads;
    for (int64_t rank = 0; rank < setup_.world_size; ++rank) {
      threads.emplace_back(
          [&, rank] { endings[static_cast<size_t>(rank)] = one_rank(rank, spec); });
    }
    for (std::thread& thread : threads) thread.join();
    return endings;
  }

  void abort(const std::string& why) {
    why_ = why;
    aborted_ = true;
  }

 private:
  RankEnding one_rank(int64_t rank, const CaseSpec& spec) {
    setup_.hooks.on_start(rank);
    RankEnding ending;
    ending.rank = rank;
    const std::string act = spec.options.value("rank " + std::to_string(rank), "echo");
    if (act == "refuse") {
      ending.kind = ResultKind::kRefused;
      ending.message = "toy refusal";
      return ending;
    }
    setup_.hooks.on_call(rank, world_call(rank, setup_.world_size, 0, Op::kBarrier));
    std::printf("rank %d does %s\n", static_cast<int>(rank), act.c_str());
    std::fflush(stdout);
    if (act == "meet") meet(spec.options.at("to meet"), ending);
    if (act != "wait") await_waits(spec.options.value("after waits", 0));
    perform(act, rank, ending);
    return ending;
  }

  void perform(const std::string& act, int64_t rank, RankEnding& ending) {
    if (act == "segv") std::raise(SIGSEGV);
    if (act == "sigkill") std::raise(SIGKILL);
    if (act == "last words") {
      std::printf("one <b>\ntwo & more\nthree\n");
      std::fflush(stdout);
      std::raise(SIGKILL);
    }
    if (act == "exit3") ::_exit(3);
    if (act == "abort") std::terminate();
    if (act == "loop") loop();
    if (act == "sleep") sleep_until_aborted(ending, ResultKind::kHung);
    if (act == "deaf") {
      count();
      for (;;) ::poll(nullptr, 0, -1);  // ignores an abort
    }
    if (act == "throw") {
      ending.kind = ResultKind::kThrew;
      ending.message = "toy error";
    } else if (act == "gather") {
      setup_.hooks.on_call(rank, world_call(rank, setup_.world_size, 1, Op::kAllGather));
      sleep_until_aborted(ending, ResultKind::kAborted);
    } else if (act == "wait") {  // in a collective of all ranks
      setup_.hooks.on_call(rank, world_call(rank, setup_.world_size, 1, Op::kAllReduce));
      count();
      sleep_until_aborted(ending, ResultKind::kAborted);
    } else if (act == "echo" || act == "meet") {
      ending.bytes = std::to_string(::getpid());
    }
  }

  void loop() {
    for (volatile bool forever = true; forever && !aborted_;) {
    }
  }

  void sleep_until_aborted(RankEnding& ending, ResultKind kind) {
    while (!aborted_) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ending.kind = kind;
    ending.message = why_;
  }

  void count() {
    if (met_ != nullptr) ++*met_;
  }

  // Until ranks of this or earlier cases have begun so many waits.
  void await_waits(int waits) {
    while (waits > 0 && *met_ < waits) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }

  void meet(int ranks, RankEnding& ending) {
    ++*met_;
    while (*met_ < ranks) {
      if (aborted_) return sleep_until_aborted(ending, ResultKind::kHung);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  WorldSetup setup_;
  std::atomic<int>* met_;  // in memory that all workers share
  std::string why_;        // of the abort
  std::atomic<bool> aborted_ = false;
};

inline golden::GoldenSize toy_golden(const CaseSpec& spec, golden::Members, int golden_fd,
                                     const std::string& dump) {
  const std::string act = spec.options.value("golden", "echo");
  if (act == "segv") {
    std::signal(SIGSEGV, SIG_DFL);  // the fork inherited Catch's handler
    std::raise(SIGSEGV);
  }
  if (act == "loop") {
    for (volatile bool forever = true; forever;) {
    }
  }
  if (act == "throw") throw std::runtime_error("toy golden error");
  if (act == "bad")
    throw Error({.kind = ErrorKind::kBadInput, .what = "toy fact", .fix = "toy fix"});
  const std::string blob = "golden of " + spec.name;
  if (::write(golden_fd, blob.data(), blob.size()) < 0) throw std::runtime_error("not written");
  return {.tensors = std::ssize(dump), .bytes = ::getpid()};
}

// A count in memory that processes forked later share.
class SharedCount {
 public:
  SharedCount() {
    void* memory = ::mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    SHARDPROOF_ASSERT(memory != MAP_FAILED, "no shared memory");
    count_ = new (memory) std::atomic<int>(0);
  }
  ~SharedCount() { ::munmap(count_, sizeof(*count_)); }
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;
  std::atomic<int>* get() const { return count_; }

 private:
  std::atomic<int>* count_;
};

// `met` counts ranks that meet, wait or are deaf; it is in memory that forked processes share.
inline WorkerFunctions toy_workers(std::atomic<int>* met = nullptr) {
  return {.golden_main = toy_golden, .make_world = [met](const WorldSetup& setup) {
            const bool threads = setup.rank < 0;
            const auto world = std::make_shared<ToyWorld>(setup, met);
            WorldSession session;
            session.run = [world](const CaseSpec& spec, int) { return world->run(spec); };
            if (threads) session.abort = [world](const std::string& why) { world->abort(why); };
            return session;
          }};
}

inline CaseSpec toy_case(const std::string& backend, int64_t world_size,
                         nlohmann::json options = nlohmann::json::object()) {
  CaseSpec spec;
  spec.name = "toy";
  spec.options = std::move(options);
  spec.parallel.dp = world_size;
  spec.world.backend = enum_of<Backend>(backend);
  spec.world.hang_s = 0.4;
  spec.world.deadline_s = 20;
  return spec;
}

}  // namespace shardproof::sim::world
