#include "policy/offload.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tensor/memory.h"

namespace shardproof {

Offloaded::Offloaded(const Trainer& trainer, What what) {
  const at::NoGradGuard no_grad;
  for (const OptimizerState& state : trainer.states()) {
    for (const at::Tensor& tensor : {state.exp_avg, state.exp_avg_sq, state.momentum_buffer}) {
      copy(tensor);
    }
  }
  if (what == What::kParametersAndOptimizer) {
    for (const at::Tensor& master : trainer.masters()) copy(master);
    for (const ParameterPtr& parameter : trainer.parameters()) copy(parameter->tensor);
  }
  for (const Moved& moved : moved_) free_memory(moved.tensor);
}

// A leaf that is its own master is copied with it; a sharded leaf has no memory between steps.
void Offloaded::copy(const at::Tensor& tensor) {
  if (!tensor.defined() || memory_bytes(tensor) == 0) return;
  const bool copied = std::ranges::any_of(
      moved_, [&](const Moved& moved) { return moved.tensor.is_alias_of(tensor); });
  if (copied) return;
  moved_.push_back({tensor, tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true)});
}

void Offloaded::reload() {
  const at::NoGradGuard no_grad;
  while (!moved_.empty()) {
    const Moved& moved = moved_.back();
    allocate_memory(moved.tensor);
    moved.tensor.variable_data().copy_(moved.on_host);
    moved_.pop_back();
  }
}

}  // namespace shardproof
