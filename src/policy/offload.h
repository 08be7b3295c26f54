// Moves a trainer's memory to the host while something else needs the device, and back.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "train/trainer.h"

namespace shardproof {

// From its start to reload() the chosen tensors are copies on the host and their own memory is
// free; reload() moves them back bit for bit. No code may use them in between: no step and no
// scoring. Use it between two steps only. No communication.
//
// No value is lost when memory is missing. The constructor makes all copies before it frees memory,
// and so throws with nothing changed; reload() throws, and another one continues. The destructor
// allocates nothing: without reload() the values are dropped, and the trainer can only be
// destroyed.
//
// Source   NeMo-RL dtensor_policy_worker.py, offload_before_refit, offload_after_refit,
//          prepare_for_training
class Offloaded {
 public:
  enum class What { kOptimizer, kParametersAndOptimizer };
  Offloaded(const Trainer& trainer, What what);
  Offloaded(const Offloaded&) = delete;
  Offloaded& operator=(const Offloaded&) = delete;
  void reload();

 private:
  struct Moved {
    at::Tensor tensor, on_host;
  };
  void copy(const at::Tensor& tensor);
  std::vector<Moved> moved_;
};

}  // namespace shardproof
