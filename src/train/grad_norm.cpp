#include "train/grad_norm.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"

namespace shardproof {
namespace {

// Whether this rank is the first of those that hold its shard of the parameter; with kEachOfTp, of
// those with its coordinate on tp.
bool counts_here(const Parameter& parameter, const MeshComm& comm, NormCopies copies) {
  const Mesh& mesh = comm.mesh();
  for (const int64_t replica : parameter.layout.replicas_of(mesh, comm.rank())) {
    if (copies == NormCopies::kOnce ||
        mesh.coordinate("tp", replica) == mesh.coordinate("tp", comm.rank())) {
      return replica == comm.rank();
    }
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
  std::vector<at::Tensor> own;
  for (size_t i = 0; i < grads.size(); ++i) {
    const bool counts = counts_here(*parameters[i], comm, options.copies);
    own.push_back(counts ? power_sum(grads[i], options.type) : at::zeros({}, grads[i].options()));
  }
  at::Tensor of_parameters = at::stack(own);
  if (options.device) of_parameters = of_parameters.to(*options.device);
  of_parameters = comm.world().all_reduce(of_parameters, largest ? ReduceOp::kMax : ReduceOp::kSum,
                                          "grad_norm");
  if (largest) return of_parameters.max();
  at::Tensor total = at::zeros({}, of_parameters.options());
  for (const at::Tensor& sum : of_parameters.unbind()) total = total + sum;
  return options.type == 2 ? total.sqrt() : total.pow(1 / options.type);
}

void clip_grads(const std::vector<at::Tensor>& grads, const at::Tensor& norm, double max_norm) {
  if (max_norm <= 0) return;
  const at::NoGradGuard no_grad;
  const at::Tensor coefficient = (max_norm / (norm + 1e-6)).clamp_max(1.0);
  for (const at::Tensor& grad : grads) grad.mul_(coefficient.to(grad.device()));
}

}  // namespace shardproof
