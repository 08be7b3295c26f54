// Single layers at a real size, in this process, without communication. bench/layers.py compares
// them with the same algorithms in PyTorch.
//
//   shardproof-layer-bench cross_entropy DTYPE ROWS COLUMNS SMOOTHING RUNS
//   shardproof-layer-bench add_norm DTYPE ROWS WIDTH 0 RUNS
//   shardproof-layer-bench add_norm_on_gpu DTYPE ROWS WIDTH 0 RUNS
//
// Prints one line of JSON: best seconds (of add_norm CPU seconds; on a GPU the median), and the
// growth of the process's peak memory.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <malloc.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "comm/communicator.h"
#include "comm/cuda_device.h"
#include "logprob/vocab_parallel_cross_entropy.h"
#include "parallel/tp/add_rms_norm.h"

namespace shardproof {
namespace {

// Restarts the peak memory of the process.
void forget_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

// "VmRSS" or "VmHWM" (the peak) of this process.
int64_t memory_of_process(const std::string& which) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != which + ":") continue;
    int64_t kilobytes = 0;
    status >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// The best of several runs: wall time, and CPU time of all threads of the process.
struct Taken {
  double seconds = 1e9, cpu_seconds = 1e9;
};

Taken best_of(int runs, const std::function<void()>& work) {
  Taken best;
  for (int i = 0; i < runs; ++i) {
    const double start = seconds_of(CLOCK_MONOTONIC);
    const double cpu_start = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    work();
    best.seconds = std::min(best.seconds, seconds_of(CLOCK_MONOTONIC) - start);
    best.cpu_seconds = std::min(best.cpu_seconds, seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_start);
  }
  return best;
}

at::ScalarType dtype_named(const std::string& name) {
  return name == "bfloat16" ? at::kBFloat16 : name == "float32" ? at::kFloat : at::kDouble;
}

void cross_entropy(at::ScalarType dtype, int64_t rows, int64_t columns, double smoothing,
                   int runs) {
  Communicator alone("tp", {0}, 0, nullptr, nullptr);
  const at::Tensor logits = at::empty({rows, columns}, at::TensorOptions().dtype(dtype));
  logits.normal_();
  logits.requires_grad_();
  const at::Tensor target = at::randint(columns, {rows}, at::kLong);
  const at::Tensor grad = at::rand({rows});
  forget_peak();
  const int64_t before = memory_of_process("VmRSS");
  const Taken taken = best_of(runs, [&] {
    logits.mutable_grad() = at::Tensor();
    vocab_parallel_cross_entropy(logits, target, alone, columns, {.label_smoothing = smoothing})
        .backward(grad);
  });
  fmt::print("{{\"seconds\": {}, \"cpu_seconds\": {}, \"peak_bytes\": {}, \"shard_bytes\": {}}}\n",
             taken.seconds, taken.cpu_seconds, memory_of_process("VmHWM") - before,
             logits.nbytes());
}

void add_norm(at::ScalarType dtype, int64_t rows, int64_t width, int runs) {
  const at::NoGradGuard no_grad;
  const auto make = [&](at::IntArrayRef shape) { return at::randn(shape).to(dtype); };
  const at::Tensor addend = make({rows, width}), residual = make({rows, width}), w = make({width});
  const Taken joined = best_of(runs, [&] { add_rms_norm(addend, residual, w, 1e-5); });
  const Taken apart = best_of(runs, [&] { inference_rms_norm(addend + residual, w, 1e-5); });
  fmt::print("{{\"joined\": {}, \"apart\": {}}}\n", joined.cpu_seconds, apart.cpu_seconds);
}

// On a GPU, by its own clock; one pass reads two tensors and writes two.
void add_norm_on_gpu(at::ScalarType dtype, int64_t rows, int64_t width, int runs) {
  const at::NoGradGuard no_grad;
  load_cuda();
  const at::Device gpu(at::kCUDA, 0);
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  const auto make = [&](at::IntArrayRef shape) { return at::randn(shape).to(gpu, dtype); };
  const at::Tensor addend = make({rows, width}), residual = make({rows, width}), w = make({width});
  const auto median_of = [&](const auto& work) {
    std::vector<double> seconds;
    for (int run = 0; run < runs + 3; ++run) {  // the first three warm up
      c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
      c10::Event end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
      begin.record(guard.getStream(gpu));
      work();
      end.record(guard.getStream(gpu));
      end.synchronize();
      if (run >= 3) seconds.push_back(begin.elapsedTime(end) / 1e3);
    }
    std::nth_element(seconds.begin(), seconds.begin() + runs / 2, seconds.end());
    return seconds[static_cast<size_t>(runs / 2)];
  };
  const double joined = median_of([&] { add_rms_norm(addend, residual, w, 1e-5); });
  const double apart = median_of([&] { inference_rms_norm(addend + residual, w, 1e-5); });
  const double copy = median_of([&] { addend.clone(); });
  const auto bytes = static_cast<double>(addend.nbytes());
  fmt::print("{{\"joined\": {}, \"apart\": {}, \"joined_gb_s\": {}, \"copy_gb_s\": {}}}\n", joined,
             apart, 4 * bytes / joined / 1e9, 2 * bytes / copy / 1e9);
}

}  // namespace
}  // namespace shardproof

int main(int count, char** words) {
  if (count != 7) return 2;
  at::set_num_threads(1);  // as in a rank
  const std::string what = words[1];
  const at::ScalarType dtype = shardproof::dtype_named(words[2]);
  const int runs = std::atoi(words[6]);
  if (what == "cross_entropy") {
    shardproof::cross_entropy(dtype, std::atoll(words[3]), std::atoll(words[4]),
                              std::atof(words[5]), runs);
  } else if (what == "add_norm_on_gpu") {
    shardproof::add_norm_on_gpu(dtype, std::atoll(words[3]), std::atoll(words[4]), runs);
  } else {
    ::mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the maximum: freed memory stays, see bench/layers.py
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
    shardproof::add_norm(dtype, std::atoll(words[3]), std::atoll(words[4]), runs);
  }
  return 0;
}
