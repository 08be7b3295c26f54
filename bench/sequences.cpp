// The cost of functions over long sequences: logprobs over a sharded vocabulary, and a ring beside
// the same attention on one device. Prints lines of JSON, which bench/sequences.py compares with
// others.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <nlohmann/json.hpp>
#include <vector>

#include "logprob/vocab_parallel_logprob.h"
#include "parallel/cp/ring_attention.h"
#include "sequence/sequence_shard.h"
#include "tensor/tensor_memory.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof {
namespace {

constexpr int64_t kTokens = 4096, kVocab = 32768, kRounds = 5;

at::Tensor drawn(const std::vector<int64_t>& shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed),
                   at::TensorOptions().dtype(at::kFloat));
}

// Wall time and CPU time of one thread, in milliseconds.
struct Stopwatch {
  std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  double cpu_start = cpu_ms();
  static double cpu_ms() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
  }
  double wall() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
        .count();
  }
  double cpu() const { return cpu_ms() - cpu_start; }
};

struct LogprobCost {
  double wall_ms = 1e9, cpu_ms = 1e9;             // of the fastest round, forward and backward
  double train_growth = 0, inference_growth = 0;  // peak bytes over those of the shard of logits
  double error = 0;                               // of a logprob against float64 on the same logits
};

double growth(const at::Tensor& shard, const TensorMemory& memory) {
  return static_cast<double>(memory.peak_bytes()) / static_cast<double>(shard.nbytes());
}

double largest_error(const at::Tensor& full, const at::Tensor& target, const at::Tensor& found) {
  double largest = 0;
  constexpr int64_t kAtOnce = 256;
  for (int64_t begin = 0; begin < kTokens; begin += kAtOnce) {
    const at::Tensor golden = at::log_softmax(full.narrow(1, begin, kAtOnce).to(at::kDouble), -1)
                                  .gather(-1, target.narrow(1, begin, kAtOnce).unsqueeze(-1))
                                  .squeeze(-1);
    const at::Tensor error = (golden - found.narrow(1, begin, kAtOnce)).abs().max();
    largest = std::max(largest, error.item<double>());
  }
  return largest;
}

LogprobCost logprob_of_rank(MeshComm& comm, int64_t rank, at::ScalarType dtype) {
  at::Tensor full = drawn({1, kTokens, kVocab}, 5).to(dtype);
  const at::Tensor shard = full.chunk(2, -1)[static_cast<size_t>(rank)].contiguous();
  if (rank != 0) full = at::Tensor();
  const at::Tensor target = (at::arange(kTokens) * 7919 % kVocab).view({1, kTokens});
  const at::Tensor grad = drawn({1, kTokens}, 2);
  Communicator& tp = comm.along("tp");
  at::Tensor leaf = shard.detach().requires_grad_(), out;
  LogprobCost cost;
  for (int64_t round = 0; round < kRounds; ++round) {
    tp.barrier("start");
    const TensorMemory memory;
    const Stopwatch watch;
    out = vocab_parallel_logprob(leaf, target, tp, kVocab);
    out.backward(grad);
    cost.wall_ms = std::min(cost.wall_ms, watch.wall());
    cost.cpu_ms = std::min(cost.cpu_ms, watch.cpu());
    cost.train_growth = std::max(cost.train_growth, growth(shard, memory));
    leaf.mutable_grad() = at::Tensor();
  }
  const at::NoGradGuard no_grad;
  const TensorMemory memory;
  vocab_parallel_logprob(leaf, target, tp, kVocab);
  cost.inference_growth = growth(shard, memory);
  if (rank == 0) cost.error = largest_error(full, target, out.detach());
  return cost;
}

void print_logprobs() {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<LogprobCost> ranks(2);
    tests::run_gloo_ranks(Mesh({{"tp", 2}}), [&](MeshComm& comm, int64_t rank) {
      ranks[static_cast<size_t>(rank)] = logprob_of_rank(comm, rank, dtype);
    });
    std::cout << nlohmann::json{{"dtype", dtype == at::kFloat ? "float32" : "bfloat16"},
                                {"wall_ms", std::max(ranks[0].wall_ms, ranks[1].wall_ms)},
                                {"cpu_ms", std::max(ranks[0].cpu_ms, ranks[1].cpu_ms)},
                                {"train_growth", ranks[0].train_growth},
                                {"inference_growth", ranks[0].inference_growth},
                                {"error", ranks[0].error}}
              << std::endl;
  }
}

// CPU seconds of all ranks together, forward and backward of causal attention.
double ring_cpu_seconds(int64_t cp_size, Rotation rotation) {
  std::vector<double> spent(static_cast<size_t>(cp_size));
  tests::run_emulated_ranks(Mesh({{"cp", cp_size}}), [&](MeshComm& comm, int64_t rank) {
    const auto layout = SequenceLayout::whole(kTokens, cp_size, ContextLayout::kZigzag);
    const auto part = [&](int64_t heads, uint64_t seed) {
      return sequence_shard(drawn({1, kTokens, heads, 64}, seed), layout, rank, 1);
    };
    const at::Tensor q = part(8, 1).requires_grad_(), k = part(2, 2).requires_grad_();
    const at::Tensor v = part(2, 3).requires_grad_(), grad = part(8, 4);
    const Stopwatch watch;
    ring_attention(q, k, v, layout, comm.along("cp"), {.rotation = rotation}).backward(grad);
    spent[static_cast<size_t>(rank)] = watch.cpu() / 1e3;
  });
  double sum = 0;
  for (const double one : spent) sum += one;
  return sum;
}

void print_rings() {
  ring_cpu_seconds(1, Rotation::kSendRecv);  // a warm-up
  const double one = ring_cpu_seconds(1, Rotation::kSendRecv);
  for (const auto rotation : {Rotation::kSendRecv, Rotation::kAllToAll, Rotation::kAllGather}) {
    std::cout << nlohmann::json{{"rotation", name_of(rotation)},
                                {"one_device_cpu_s", one},
                                {"four_ranks_cpu_s", ring_cpu_seconds(4, rotation)}}
              << std::endl;
  }
}

}  // namespace
}  // namespace shardproof

int main(int argc, char** argv) {
  const std::string what = argc == 2 ? argv[1] : "";
  if (what != "logprob" && what != "ring") {
    std::cerr << "usage: shardproof-bench-sequences logprob|ring\n";
    return 2;
  }
  at::set_num_threads(1);
  if (what == "logprob") {
    shardproof::print_logprobs();
  } else {
    shardproof::print_rings();
  }
  return 0;
}
