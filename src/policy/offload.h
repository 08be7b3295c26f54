// Moves a trainer's memory to the host while something else needs the device, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "train/trainer.h"

namespace shardproof {

// While this object exists, the chosen tensors are copies on the host and their own memory is free.
// Its end, or reload(), moves them back bit for bit. No code may use them in between: no step and
// no scoring. Use it between two steps only. No communication. When memory for a copy or for the
// return is missing, it throws and loses no value: moved tensors return, or wait for another
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
