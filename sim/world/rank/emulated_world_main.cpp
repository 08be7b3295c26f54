#include "sim/world/rank/emulated_world_main.h"

#include <ATen/ATen.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <optional>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/freed_memory.h"
#include "base/mutex.h"
#include "comm/cuda_device.h"
#include "sim/case/schedule_search.h"
#include "sim/world/emulated/emulated_world.h"
#include "sim/world/match/matcher.h"
#include "sim/world/rank/case_inputs.h"
#include "sim/world/rank/member_noise.h"

namespace shardproof::sim::world {
namespace {

// The time that ranks have to react to an abort; control waits slightly longer.
constexpr std::chrono::milliseconds kAbortGrace{300};

// The ranks' tensors are all on one GPU. It is named with its number, as tensors name it.
std::string device_name(DeviceKind device) {
  if (device == DeviceKind::kCpu) return "cpu";
  load_cuda();
  return "cuda:0";
}

constexpr int64_t kFewRanks = 8;
constexpr int64_t kKeptOfManyRanks = int64_t{64} << 20;

// Settings of the allocators, before the first thread of a rank: a thread that starts reads the
// environment, which must not change meanwhile. With many ranks, memory that each thread keeps adds
// up: MKL frees its packing buffers (1 MB a thread) after each product, and the C library gives
// threads that take turns (run_slots.h) as many arenas as there are cores, so that one rank takes
// the memory that another has freed.
void share_memory_between_ranks(int64_t rank_count) {
  if (rank_count <= kFewRanks) return;
  ::setenv("MKL_DISABLE_FAST_MM", "1", /*replace=*/0);  // MKL reads it at its first use
  // Blocks from this size on (a bucket of gradients) are returned to the system at once. By default
  // the C library raises the threshold when the first is freed, and keeps later ones.
  ::mallopt(M_MMAP_THRESHOLD, 1 << 20);
  ::mallopt(M_ARENA_MAX, static_cast<int>(std::max(2u, std::thread::hardware_concurrency())));
}

// A few ranks keep their memory for their next tensors, as system time falls with the faults for
// new pages (bench/README.md), unless the case `holds_little`: it is measured by what it holds, or
// is as large as the machine.
void keep_memory_of_ranks(int64_t rank_count, bool holds_little) {
  if (rank_count > kFewRanks) return;
  if (holds_little) {
    return_memory_when_freed();
  } else {
    keep_freed_memory(Arenas::kOfThreads);
  }
}

// LibTorch and MKL choose the functions for this processor when each is used first. Where ranks
// came first together, one in some two thousand worlds had a rank whose results were less accurate
// (2e-10 in float64). So one thread uses them first, before there are ranks.
void use_functions_first() {
  prepare_rank_thread();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const at::Tensor x = at::full({8, 8}, 0.5, dtype);
    for (const auto& function : {at::exp, at::log, at::sqrt, at::sin, at::cos, at::tanh, at::erf}) {
      function(x);
    }
    at::mm(x, x);
  }
}

}  // namespace

struct EmulatedWorldMain::Impl {
  Impl(int64_t world_size, std::string given_device, RankHooks given_hooks, RankMain given_main)
      : world(world_size),
        device(std::move(given_device)),
        hooks(std::move(given_hooks)),
        main(std::move(given_main)),
        endings(static_cast<size_t>(world_size)) {}

  // What one rank's thread does.
  void run_one(int64_t rank) {
    prepare_rank_thread();
    world.rank_started(rank);
    RankEnv env;
    env.rank = rank;
    env.world_size = world.world_size();
    env.make_backend = world.factory(rank);
    env.device = device;
    env.golden_fd = golden_fd;
    env.inputs = &inputs;
    // Under an exact schedule transfers take no time, so times would say nothing.
    if (!is_exact_schedule(spec.world.schedule)) env.clock = &world.clock(rank);
    RankEnding ending = run_rank(main, spec, std::move(env), hooks);
    // Ranks that do not need one that refused go on: they are to refuse too.
    const ResultKind kind = ending.kind;
    if (kind == ResultKind::kFinished || kind == ResultKind::kRefused ||
        kind == ResultKind::kBadInput) {
      world.rank_ended(rank);
    } else {
      world.rank_threw(rank, ending.message);
    }
    const Lock lock(mutex);
    endings[static_cast<size_t>(rank)] = std::move(ending);
    --running;
    done.notify_one();
  }

  // Threads end with their case: what the C library keeps for each, 180 KB with its stack, would
  // stay.
  void start_ranks(const std::shared_ptr<Impl>& self) SHARDPROOF_REQUIRES(mutex) {
    try {
      while (std::ssize(threads) < world.world_size()) {
        threads.emplace_back([self, rank = std::ssize(threads)] { self->run_one(rank); });
      }
    } catch (const std::exception& error) {  // the machine has no more threads
      for (int64_t rank = std::ssize(threads); rank < world.world_size(); ++rank) {
        world.rank_threw(rank, error.what());
        --running;
      }
      while (running > 0) done.wait(mutex);
      end_ranks();
      throw;
    }
  }

  // Ranks that hang go on until the process ends.
  void end_ranks() SHARDPROOF_REQUIRES(mutex) {
    for (std::thread& thread : std::exchange(threads, {})) {
      if (running == 0) {
        thread.join();
      } else {
        thread.detach();
      }
    }
  }

  EmulatedWorld world;
  std::string device;
  RankHooks hooks;
  RankMain main;
  CaseInputsCache inputs;

  Mutex mutex;
  std::vector<std::thread> threads SHARDPROOF_GUARDED_BY(mutex);
  Condition done;  // a rank has ended, or the case was aborted
  // Of the case; ranks only read them.
  int golden_fd = -1;
  CaseSpec spec;
  std::vector<std::optional<RankEnding>> endings SHARDPROOF_GUARDED_BY(mutex);
  bool ran SHARDPROOF_GUARDED_BY(mutex) = false;  // a case before
  size_t running SHARDPROOF_GUARDED_BY(mutex) = 0;
  std::optional<std::string> abort_reason SHARDPROOF_GUARDED_BY(mutex);
};

EmulatedWorldMain::EmulatedWorldMain(int64_t world_size, DeviceKind device, RankHooks hooks,
                                     RankMain main)
    : impl_(std::make_shared<Impl>(world_size, device_name(device), std::move(hooks),
                                   std::move(main))) {
  share_memory_between_ranks(world_size);
  std::thread(use_functions_first).join();
}

EmulatedWorldMain::~EmulatedWorldMain() = default;

std::vector<RankEnding> EmulatedWorldMain::run(const CaseSpec& spec, int golden_fd) {
  Impl& impl = *impl_;
  const Lock lock(impl.mutex);
  SHARDPROOF_ASSERT(impl.running == 0, "a world with a hung rank was reused");
  if (impl.ran) impl.world.reset();
  impl.ran = true;
  keep_memory_of_ranks(std::ssize(impl.endings), draws_own_shards(spec));
  impl.spec = spec;
  impl.world.configure(spec.world);
  impl.golden_fd = golden_fd;
  std::fill(impl.endings.begin(), impl.endings.end(), std::nullopt);
  impl.running = impl.endings.size();
  impl.abort_reason.reset();
  impl.start_ranks(impl_);

  while (impl.running > 0 && !impl.abort_reason) impl.done.wait(impl.mutex);
  const auto deadline = std::chrono::steady_clock::now() + kAbortGrace;
  while (impl.running > 0 && impl.done.wait_until(impl.mutex, deadline)) {
  }
  impl.end_ranks();
  // Before the launcher judges, which takes memory of its own.
  if (std::ssize(impl.endings) > kFewRanks) return_freed_memory(kKeptOfManyRanks);
  std::vector<RankEnding> endings;
  for (size_t rank = 0; rank < impl.endings.size(); ++rank) {
    if (impl.endings[rank]) {
      endings.push_back(std::move(*impl.endings[rank]));
      continue;
    }
    RankEnding hung;
    hung.rank = static_cast<int64_t>(rank);
    hung.kind = ResultKind::kHung;
    hung.last_call = impl.world.last_call(hung.rank);
    hung.message = std::string(kWaitsForNobody) + "; " + impl.abort_reason.value_or("");
    endings.push_back(hung);
  }
  const auto trace = impl.world.schedule_trace();
  if (trace && endings.front().kind == ResultKind::kFinished) {
    endings.front().message = trace_text(*trace);
  }
  // Found after the ranks had returned: another rank waits for one, or one has not waited itself.
  if (const auto failure = impl.world.failure()) {
    for (const int64_t rank : failure->ranks) {
      RankEnding& ending = endings[static_cast<size_t>(rank)];
      if (ending.kind != ResultKind::kFinished) continue;
      ending.kind = enum_of<ResultKind>(failure->code);
      ending.message = failure->text();
    }
  }
  return endings;
}

void EmulatedWorldMain::abort(const std::string& why) {
  impl_->world.abort("hung", why);
  const Lock lock(impl_->mutex);
  impl_->abort_reason = why;
  impl_->done.notify_one();
}

}  // namespace shardproof::sim::world
