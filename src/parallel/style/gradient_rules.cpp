#include "parallel/style/gradient_rules.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace shardproof {

void apply_gradient_rules(const std::vector<ParameterPtr>& parameters,
                          std::vector<at::Tensor>& grads, MeshComm& comm,
                          std::optional<at::Device> device) {
  SHARDPROOF_ASSERT(parameters.size() == grads.size(), "one gradient per parameter");
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < grads.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    SHARDPROOF_ASSERT(grads[i].defined(), parameter.name + " has no gradient: give zeros");
    if (!parameter.trainable) continue;
    // The gradient may be a part of a larger buffer, so it is written in place.
    if (const auto& axes = parameter.rule.sum_over; !axes.empty()) {
      const at::Tensor here = grads[i].to(device.value_or(grads[i].device()));
      const std::string label = "grad." + parameter.name;
      grads[i].copy_(comm.along(axes).all_reduce(here, ReduceOp::kSum, label));
    }
    for (const std::string& axis : parameter.rule.summed_over) {
      grads[i].div_(static_cast<double>(comm.mesh().size(axis)));
    }
  }
}

}  // namespace shardproof
