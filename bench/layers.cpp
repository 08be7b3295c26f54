// Single layers at a real size, in this process, without communication: bench/layers.py runs it
// beside the same algorithms in PyTorch.
//
//   shardproof-layer-bench cross_entropy DTYPE ROWS COLUMNS SMOOTHING RUNS
//   shardproof-layer-bench inference_pair DTYPE TOKENS WIDTH FEATURES RUNS
//
// Prints one line of JSON: best seconds, and how far the peak memory of the process grew.
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

#include "comm/communicator.h"
#include "logprob/vocab_parallel_cross_entropy.h"
#include "parallel/tp/inference_pair.h"

namespace shardproof {
namespace {

int64_t peak_bytes_of_process() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

double best_seconds(int runs, const std::function<void()>& work) {
  double best = 1e9;
  for (int i = 0; i < runs; ++i) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count());
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
  const int64_t before = peak_bytes_of_process();
  const double seconds = best_seconds(runs, [&] {
    logits.mutable_grad() = at::Tensor();
    vocab_parallel_cross_entropy(logits, target, alone, columns, {.label_smoothing = smoothing})
        .backward(grad);
  });
  fmt::print("{{\"seconds\": {}, \"peak_bytes\": {}, \"shard_bytes\": {}}}\n", seconds,
             peak_bytes_of_process() - before, logits.nbytes());
}

void inference_pair(at::ScalarType dtype, int64_t tokens, int64_t width, int64_t features,
                    int runs) {
  const at::NoGradGuard no_grad;
  Communicator alone("tp", {0}, 0, nullptr, nullptr);
  const auto make = [&](at::IntArrayRef shape) { return at::randn(shape).to(dtype); };
  const InferenceRowScatter row(make({width, features}), alone, "row");
  const InferenceNormColumn column(make({width}), make({features, width}), 1e-5, alone, "column");
  const at::Tensor x = make({tokens, 1, features}), residual = make({tokens, 1, width});
  const at::Tensor rows = row.forward(x);
  const double joined =
      best_seconds(runs, [&] { add_rms_norm(rows, residual, column.norm_weight(), 1e-5); });
  const double apart =
      best_seconds(runs, [&] { inference_rms_norm(rows + residual, column.norm_weight(), 1e-5); });
  const double pair_joined = best_seconds(
      runs, [&] { column.forward_normed(row.forward_joined(x, residual, column).gathered); });
  const double pair_apart = best_seconds(runs, [&] { column.forward(row.forward(x) + residual); });
  fmt::print("{{\"joined\": {}, \"apart\": {}, \"pair_joined\": {}, \"pair_apart\": {}}}\n", joined,
             apart, pair_joined, pair_apart);
}

}  // namespace
}  // namespace shardproof

int main(int count, char** words) {
  if (count != 7) return 2;
  const std::string what = words[1];
  const at::ScalarType dtype = shardproof::dtype_named(words[2]);
  const int runs = std::atoi(words[6]);
  if (what == "cross_entropy") {
    shardproof::cross_entropy(dtype, std::atoll(words[3]), std::atoll(words[4]),
                              std::atof(words[5]), runs);
  } else {
    shardproof::inference_pair(dtype, std::atoll(words[3]), std::atoll(words[4]),
                               std::atoll(words[5]), runs);
  }
  return 0;
}
