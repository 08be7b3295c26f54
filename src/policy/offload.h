// A trainer's memory moved to the host while something else needs the device, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "train/trainer.h"

namespace shardproof {

// While it lives, the tensors named are copies on the host and their own memory is free. They come
// back to the bit when it ends, or at reload(). Nothing may use them in between: no step, no
// scoring. Between two steps only. No communication. Where memory for a copy, or for its way back,
// is missing, it throws and no value is lost: what had gone comes back, or waits for another
// reload().
//
// Source   NeMo-RL dtensor_policy_worker.py, offload_before_refit, offload_after_refit,
//          prepare_for_training
class Offloaded {
 public:
  enum class What { kOptimizer, kParametersAndOptimizer };
  Offloaded(const Trainer& trainer, What what);
  ~Offloaded();
  Offloaded(const Offloaded&) = delete;
  Offloaded& operator=(const Offloaded&) = delete;
  void reload();

 private:
  Offloaded() = default;
  struct Moved {
    at::Tensor tensor, on_host;
  };
  void move(const at::Tensor& tensor);
  std::vector<Moved> moved_;
};

}  // namespace shardproof
