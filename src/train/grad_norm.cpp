#include "train/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace shardproof {
namespace {

// Whether this rank is the first of its tp peers that hold this parameter's shard.
bool counts_here(const Parameter& parameter, const MeshComm& comm) {
  const std::vector<int64_t> replicas = parameter.layout.replicas_of(comm.mesh(), comm.rank());
  for (int64_t peer : comm.mesh().peers_along("tp", comm.rank())) {
    if (std::find(replicas.begin(), replicas.end(), peer) != replicas.end()) {
      return peer == comm.rank();
    }
  }
  return false;
}

// The axis besides tp that cuts parameters, the same for all of them; "" when there is none.
std::string shard_axis(const std::vector<ParameterPtr>& parameters) {
  for (const ParameterPtr& parameter : parameters) {
    for (const Cut& cut : parameter->layout.cuts()) {
      if (cut.axis != "tp") return cut.axis;
    }
  }
  return "";
}

// The sum over all elements of |g|^p; for the infinity norm the largest magnitude.
at::Tensor power_sum(const at::Tensor& grad, double type) {
  if (grad.numel() == 0) return at::zeros({}, grad.options());
  if (std::isinf(type)) return grad.abs().max();
  return type == 2 ? grad.square().sum() : grad.abs().pow(type).sum();
}

}  // namespace

at::Tensor grad_norm(const std::vector<ParameterPtr>& parameters,
                     const std::vector<at::Tensor>& grads, MeshComm& comm,
                     const GradNormOptions& options) {
  SHARDPROOF_ASSERT(parameters.size() == grads.size() && !grads.empty(),
                    "one gradient per parameter");
  SHARDPROOF_ASSERT(options.type > 0, "a norm's type is above 0");
  const at::NoGradGuard no_grad;
  const bool largest = std::isinf(options.type);
  at::Tensor total = at::zeros({}, grads.front().options());
  for (size_t i = 0; i < grads.size(); ++i) {
    if (options.copies == NormCopies::kOnce && !counts_here(*parameters[i], comm)) continue;
    const at::Tensor addend = power_sum(grads[i], options.type);
    total = largest ? at::maximum(total, addend) : total + addend;
  }
  if (options.device) total = total.to(*options.device);
  const ReduceOp op = largest ? ReduceOp::kMax : ReduceOp::kSum;
  const std::string shards = shard_axis(parameters);
  if (!shards.empty()) total = comm.along(shards).all_reduce(total, op, "grad_norm of shards");
  total = comm.along("tp").all_reduce(total, op, "grad_norm");
  if (largest) return total;
  return options.type == 2 ? total.sqrt() : total.pow(1 / options.type);
}

void clip_grads(const std::vector<at::Tensor>& grads, const at::Tensor& norm, double max_norm) {
  if (max_norm <= 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor coefficient = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (const at::Tensor& grad : grads) grad.mul_(coefficient.to(grad.device()));
}

}  // namespace shardproof
