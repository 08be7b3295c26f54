#include "parallel/tp/partial_gradients.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof {
namespace {

const Cut* repeated_cut(const Parameter& parameter) {
  const auto& cuts = parameter.layout.cuts();
  const auto found = std::find_if(cuts.begin(), cuts.end(),
                                  [](const Cut& cut) { return cut.kind == Cut::Kind::kRepeated; });
  return found == cuts.end() ? nullptr : &*found;
}

at::Tensor finished(const Parameter& parameter, at::Tensor grad, MeshComm& comm) {
  const std::string label = "grad." + parameter.name;
  if (!parameter.partial_grad_axes.empty()) {
    grad = comm.along(parameter.partial_grad_axes).all_reduce(grad, ReduceOp::kSum, label);
  }
  if (parameter.sum_grad_over_repeats) {
    const Cut* cut = repeated_cut(parameter);
    SHARDPROOF_ASSERT(cut != nullptr, parameter.name + " has no repeated cut to sum over");
    grad = comm.repeats_along(cut->axis, cut->parts).all_reduce(grad, ReduceOp::kSum, label);
  }
  return grad;
}

bool is_partial(const Parameter& parameter) {
  return parameter.trainable &&
         (!parameter.partial_grad_axes.empty() || parameter.sum_grad_over_repeats);
}

}  // namespace

void reduce_partial_gradients(const std::vector<ParameterPtr>& parameters,
                              std::vector<at::Tensor>& grads, MeshComm& comm,
                              std::optional<at::Device> device) {
  SHARDPROOF_ASSERT(parameters.size() == grads.size(), "one gradient per parameter");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < grads.size(); ++i) {
    SHARDPROOF_ASSERT(grads[i].defined(), parameters[i]->name + " has no gradient: give zeros");
    if (!is_partial(*parameters[i])) continue;
    const at::Device home = grads[i].device();
    // The gradient may be a part of a larger buffer, so it is written in place.
    grads[i].copy_(finished(*parameters[i], grads[i].to(device.value_or(home)), comm));
  }
}

}  // namespace shardproof
