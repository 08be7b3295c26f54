// The reference policy: a second set of weights for a trainer's model, swapped in for scoring.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "train/trainer.h"

namespace shardproof {

// Copies of a trainer's masters, this rank's shards, on the host.
class ReferenceWeights {
 public:
  explicit ReferenceWeights(const Trainer& trainer);  // copies the current masters
  const std::vector<at::Tensor>& masters() const { return masters_; }

  // While this object exists, the trainer's model has the reference's weights: score with it, do
  // not train. Its end restores the policy's own weights bit for bit, even after an exception. Use
  // one at a time, between two steps. No communication.
  //
  // Source   NeMo-RL dtensor_policy_worker.py, use_reference_model
  class InUse {
   public:
    InUse(const ReferenceWeights& reference, Trainer& trainer);
    ~InUse();
    InUse(const InUse&) = delete;
    InUse& operator=(const InUse&) = delete;

   private:
    explicit InUse(Trainer& trainer);  // copies the policy's weights
    Trainer& trainer_;
    std::vector<at::Tensor> aside_;
  };

 private:
  std::vector<at::Tensor> masters_;
};

}  // namespace shardproof
