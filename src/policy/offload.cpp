#include "policy/offload.h"

#include <ATen/ATen.h>

#include "tensor/memory.h"

namespace shardproof {

// It delegates, so that a failed copy runs the destructor, which moves the other tensors back.
Offloaded::Offloaded(const Trainer& trainer, What what) : Offloaded() {
  const at::NoGradGuard no_grad;
  for (const OptimizerState& state : trainer.states()) {
    for (const at::Tensor& tensor : {state.exp_avg, state.exp_avg_sq, state.momentum_buffer}) {
      move(tensor);
    }
  }
  if (what == What::kOptimizer) return;
  for (const at::Tensor& master : trainer.masters()) move(master);
  for (const ParameterPtr& parameter : trainer.parameters()) move(parameter->tensor);
}

// A leaf that is its own master was moved with it; a sharded leaf has no memory between steps.
void Offloaded::move(const at::Tensor& tensor) {
  if (!tensor.defined() || memory_bytes(tensor) == 0) return;
  moved_.push_back({tensor, tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true)});
  free_memory(tensor);
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

Offloaded::~Offloaded() { reload(); }

}  // namespace shardproof
