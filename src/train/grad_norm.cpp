#include "train/grad_norm.h"

#include <ATen/ATen.h>

#include <algorithm>

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

}  // namespace

at::Tensor grad_norm(const std::vector<ParameterPtr>& parameters,
                     const std::vector<at::Tensor>& grads, MeshComm& comm) {
  SHARDPROOF_ASSERT(parameters.size() == grads.size() && !grads.empty(),
                    "one gradient per parameter");
  const at::NoGradGuard no_grad;
  at::Tensor squares = at::zeros({}, grads.front().options());
  for (size_t i = 0; i < grads.size(); ++i) {
    if (counts_here(*parameters[i], comm)) squares += grads[i].square().sum();
  }
  return comm.along("tp").all_reduce(squares, ReduceOp::kSum, "grad_norm").sqrt();
}

void clip_grads(const std::vector<at::Tensor>& grads, const at::Tensor& norm, double max_norm) {
  if (max_norm <= 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor coefficient = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (const at::Tensor& grad : grads) grad.mul_(coefficient);
}

}  // namespace shardproof
