#include "train/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace shardproof {
namespace {

// The axes of tokens that cut parameters.
std::vector<std::string> shard_axes_of(const std::vector<ParameterPtr>& parameters,
                                       const std::vector<std::string>& model_axes) {
  std::vector<std::string> axes;
  const auto knows = [](const std::vector<std::string>& known, const std::string& axis) {
    return std::find(known.begin(), known.end(), axis) != known.end();
  };
  for (const ParameterPtr& parameter : parameters) {
    for (const Cut& cut : parameter->layout.cuts()) {
      if (!knows(model_axes, cut.axis) && !knows(axes, cut.axis)) axes.push_back(cut.axis);
    }
  }
  return axes;
}

// All ranks whose numbers are added to this rank's.
std::vector<int64_t> summed_ranks(const MeshComm& comm, const std::vector<std::string>& shards,
                                  const std::vector<std::string>& model_axes) {
  std::vector<int64_t> ranks = comm.mesh().peers_along(model_axes, comm.rank());
  for (const std::string& axis : shards) {
    std::vector<int64_t> wider;
    for (const int64_t rank : ranks) {
      const std::vector<int64_t> peers = comm.mesh().peers_along(axis, rank);
      wider.insert(wider.end(), peers.begin(), peers.end());
    }
    ranks = std::move(wider);
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

// Whether this rank is the first of those that are summed and hold this parameter's shard.
bool counts_here(const Parameter& parameter, const MeshComm& comm,
                 const std::vector<int64_t>& summed) {
  const std::vector<int64_t> replicas = parameter.layout.replicas_of(comm.mesh(), comm.rank());
  for (const int64_t replica : replicas) {
    if (std::binary_search(summed.begin(), summed.end(), replica)) return replica == comm.rank();
  }
  return false;
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
  const std::vector<std::string> shards = shard_axes_of(parameters, options.model_axes);
  const std::vector<int64_t> summed = summed_ranks(comm, shards, options.model_axes);
  at::Tensor total = at::zeros({}, grads.front().options());
  for (size_t i = 0; i < grads.size(); ++i) {
    if (options.copies == NormCopies::kOnce && !counts_here(*parameters[i], comm, summed)) continue;
    const at::Tensor addend = power_sum(grads[i], options.type);
    total = largest ? at::maximum(total, addend) : total + addend;
  }
  if (options.device) total = total.to(*options.device);
  const ReduceOp op = largest ? ReduceOp::kMax : ReduceOp::kSum;
  for (const std::string& axis : shards) {
    total = comm.along(axis).all_reduce(total, op, "grad_norm of shards");
  }
  total = comm.along(options.model_axes).all_reduce(total, op, "grad_norm");
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
