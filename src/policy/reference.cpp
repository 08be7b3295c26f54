#include "policy/reference.h"

#include <ATen/ATen.h>

namespace shardproof {
namespace {

std::vector<at::Tensor> copies_on_host(const std::vector<at::Tensor>& tensors) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
  }
  return copies;
}

}  // namespace

ReferenceWeights::ReferenceWeights(const Trainer& trainer)
    : masters_(copies_on_host(trainer.masters())) {}

ReferenceWeights::InUse::InUse(Trainer& trainer)
    : trainer_(trainer), aside_(copies_on_host(trainer.masters())) {}

// It delegates, so that a swap that fails half way runs the destructor.
ReferenceWeights::InUse::InUse(const ReferenceWeights& reference, Trainer& trainer)
    : InUse(trainer) {
  trainer_.set_masters(reference.masters());
}

// It makes no calls: other ranks may not have thrown.
ReferenceWeights::InUse::~InUse() { trainer_.copy_masters(aside_); }

}  // namespace shardproof
