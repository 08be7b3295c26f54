#include "parallel/data/replicated.h"

#include <ATen/ATen.h>

#include "model/precision.h"
#include "parallel/data/replicate.h"

namespace shardproof {

ReplicatedModel::ReplicatedModel(const StoreSetup& setup, GradientPlace gradients)
    : parameters_(setup.model.parameters()), comm_(setup.comm), token_axes_(setup.token_axes) {
  if (gradients == GradientPlace::kMain) use_main_gradients(setup.model);
}

void ReplicatedModel::average(std::vector<at::Tensor>& grads) {
  average_parameter_gradients(parameters_, grads, comm_, token_axes_);
}

void ReplicatedModel::refresh() {
  const at::NoGradGuard no_grad;
  for (const ParameterPtr& parameter : parameters_) refresh_leaf(*parameter);
}

}  // namespace shardproof
