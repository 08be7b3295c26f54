// Lower bounds of the benchmark's cases, measured on the machine at hand.
//
//   shardproof-bench arithmetic FILE   one JSON line per case: the seconds of all its ranks in
//                                      turn, each collective a local copy; its collectives
//   shardproof-bench gloo RANKS        seconds of one bare ProcessGroupGloo all_reduce of 256 KiB
//   shardproof-bench start             links LibTorch, makes a tensor, ends
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/FileStore.hpp>

#include "bench/local_copies.h"
#include "comm/gloo_backend.h"
#include "comm/store.h"
#include "sim/case/scenario/scenario.h"
#include "sim/world/rank/case_inputs.h"
#include "sim/world/rank/rank_main.h"
#include "sim/world/rank/run_rank.h"

namespace shardproof::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Bare {
  double seconds = 0;
  int64_t calls = 0;  // of rank 0
};

Bare run_bare(const sim::CaseSpec& spec, sim::world::CaseInputsCache& inputs) {
  const int64_t world_size = spec.parallel.world_size();
  Bare bare;
  const Clock::time_point start = Clock::now();
  for (int64_t rank = 0; rank < world_size; ++rank) {
    sim::world::RankEnv env;
    env.rank = rank;
    env.world_size = world_size;
    env.make_backend = local_copies(rank);
    env.inputs = &inputs;
    env.on_call = [&](const Call&) { bare.calls += rank == 0 ? 1 : 0; };
    sim::world::rank_main(spec, env);
  }
  bare.seconds = seconds_since(start);
  return bare;
}

// The best of three runs, to exclude other work of the machine.
int arithmetic(const std::string& file) {
  constexpr int kRepeats = 3;
  sim::world::prepare_rank_thread();
  sim::world::CaseInputsCache inputs;
  for (sim::CaseSpec spec : sim::parse_scenario(file).cases) {
    spec.judged = false;
    Bare best = run_bare(spec, inputs);
    for (int i = 1; i < kRepeats; ++i) {
      const Bare again = run_bare(spec, inputs);
      if (again.seconds < best.seconds) best = again;
    }
    fmt::print("{{\"case\": \"{}\", \"seconds\": {:.6f}, \"collectives\": {}}}\n", spec.name,
               best.seconds, best.calls);
  }
  return 0;
}

double gloo_call_seconds(const std::string& store_file, int64_t rank, int64_t size) {
  constexpr int kCalls = 500;
  at::set_num_threads(1);
  const StorePtr store = c10::make_intrusive<c10d::FileStore>(store_file, static_cast<int>(size));
  const BackendFactory factory = gloo_factory(store, rank);
  std::vector<int64_t> ranks;
  for (int64_t i = 0; i < size; ++i) ranks.push_back(i);
  const auto backend = factory("tp", ranks);
  std::vector<at::Tensor> buffers{at::ones({256 * 1024 / 4})};
  const auto call = [&] { backend->allreduce(buffers, {})->wait(); };
  for (int i = 0; i < 20; ++i) call();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  return seconds_since(start) / kCalls;
}

int gloo(int64_t size) {
  char folder[] = "/tmp/shardproof-bench.XXXXXX";
  if (::mkdtemp(folder) == nullptr) return 5;
  const std::string store_file = std::string(folder) + "/store";
  for (int64_t rank = 0; rank < size; ++rank) {
    if (::fork() != 0) continue;
    const double seconds = gloo_call_seconds(store_file, rank, size);
    if (rank == 0) fmt::print("{:.9f}\n", seconds);
    std::fflush(stdout);
    ::_exit(0);
  }
  int status = 0;
  bool good = true;
  while (::wait(&status) > 0) good = good && status == 0;
  std::filesystem::remove_all(folder);
  return good ? 0 : 5;
}

int run(const std::vector<std::string>& words) {
  if (words.size() == 2 && words[0] == "arithmetic") return arithmetic(words[1]);
  if (words.size() == 2 && words[0] == "gloo") return gloo(std::stoll(words[1]));
  if (words.size() == 1 && words[0] == "start")
    return at::ones({2}).sum().item<float>() == 2 ? 0 : 5;
  fmt::print(stderr, "usage: shardproof-bench arithmetic FILE | gloo RANKS | start\n");
  return 2;
}

}  // namespace
}  // namespace shardproof::bench

int main(int argc, char** argv) {
  return shardproof::bench::run(std::vector<std::string>(argv + 1, argv + argc));
}
