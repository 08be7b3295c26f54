#include "golden/muon.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

namespace shardproof::golden {
namespace {

at::Tensor of_matrix(const at::Tensor& matrix) {
  // The iteration mixes all elements, and singular values of such a matrix do not exist.
  if (!at::isfinite(matrix).all().item<bool>()) return at::full_like(matrix, NAN);
  const double norm = at::linalg_matrix_norm(matrix, "fro").item<double>();
  const auto [left, values, right] =
      at::linalg_svd(matrix / std::max(norm, 1e-7), /*full_matrices=*/false);
  at::Tensor s = values;
  for (int step = 0; step < 5; ++step) {
    s = s.mul(3.4445) - s.pow(3).mul(4.7750) + s.pow(5).mul(2.0315);
  }
  const double tallness = static_cast<double>(matrix.size(0)) / static_cast<double>(matrix.size(1));
  return (left * s).mm(right) * (tallness > 1 ? std::sqrt(tallness) : 1.0);
}

}  // namespace

bool is_hidden_matrix(const std::string& name, const at::Tensor& value) {
  return name.starts_with("model.layers.") && value.dim() >= 2;
}

at::Tensor muon_update(const std::string& name, const at::Tensor& momentum) {
  if (momentum.dim() == 2) return of_matrix(momentum);
  std::vector<at::Tensor> experts;
  for (const at::Tensor& expert : momentum.unbind(0)) {
    std::vector<at::Tensor> matrices;
    for (const at::Tensor& matrix : expert.chunk(name.ends_with("gate_up_proj") ? 2 : 1, 0)) {
      matrices.push_back(of_matrix(matrix));
    }
    experts.push_back(at::cat(matrices, 0));
  }
  return at::stack(experts, 0);
}

}  // namespace shardproof::golden
