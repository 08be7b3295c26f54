#include "optim/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace shardproof {
namespace {

constexpr int kSteps = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
constexpr double kLeastNorm = 1e-7;  // the norm that a smaller one is divided by

}  // namespace

at::Tensor orthogonalized(const at::Tensor& matrix) {
  const bool tall = matrix.size(-2) > matrix.size(-1);
  at::Tensor x = tall ? matrix.mT() : matrix;
  x = x / x.square().sum({-2, -1}, /*keepdim=*/true).sqrt().clamp_min(kLeastNorm);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor gram = x.matmul(x.mT());
    x = kA * x + (kB * gram + kC * gram.matmul(gram)).matmul(x);
  }
  return tall ? x.mT() : x;
}

MuonStep muon_direction(const at::Tensor& grad, const OptimizerState& state,
                        const OptimizerOptions& options) {
  const at::NoGradGuard no_grad;
  const at::Tensor before =
      state.momentum_buffer.defined() ? state.momentum_buffer : at::zeros_like(grad);
  const at::Tensor buffer = before.lerp(grad, 1 - options.momentum);
  return {.momentum_buffer = buffer,
          .update = options.nesterov ? grad.lerp(buffer, options.momentum) : buffer};
}

at::Tensor muon_update(const at::Tensor& direction, const std::vector<int64_t>& matrix_rows) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> updates;
  for (const at::Tensor& matrix : direction.split_with_sizes(matrix_rows, -2)) {
    const auto rows = static_cast<double>(matrix.size(-2));
    const auto columns = static_cast<double>(matrix.size(-1));
    updates.push_back(orthogonalized(matrix) * std::sqrt(std::max(1.0, rows / columns)));
  }
  return at::cat(updates, -2);
}

void muon_step(const at::Tensor& parameter, const MuonStep& step, OptimizerState& state,
               const OptimizerOptions& options) {
  SHARDPROOF_ASSERT(parameter.sizes() == step.update.sizes(), "an update has its matrix's shape");
  const at::NoGradGuard no_grad;
  ++state.step;
  state.momentum_buffer = step.momentum_buffer;
  parameter.mul_(1 - options.lr * options.weight_decay).add_(step.update, -options.lr);
}

}  // namespace shardproof
