// Dynamic loss scaling, so that the gradients of a float16 run neither vanish nor overflow.
//
//   loss * scale --backward--> gradients * scale --mean, * ranks / scale--> gradients
//   one is not finite, on any rank   all ranks skip the step; scale *= backoff_factor
//   none for growth_interval steps   scale *= growth_factor, where float32 can hold it
//
// Source: torch.amp.GradScaler (scale, unscale_, step, update). There each rank checks its own
// gradients. Here all ranks agree, because a rank that holds a shard sees only that shard. NeMo-RL
// multiplies the loss by the number of ranks before the backward, which costs range in float16.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "base/training_choices.h"
#include "comm/communicator.h"

namespace shardproof {

struct LossScaleState {
  double scale = 1;
  int64_t good_steps = 0;  // since the scale last changed
};

class LossScale {
 public:
  explicit LossScale(const LossScaleOptions& options);
  bool enabled() const { return options_.enabled; }
  double scale() const { return state_.scale; }  // 1 when it is not enabled
  const LossScaleState& state() const { return state_; }
  // Without a state: the initial one. Does nothing when it is not enabled.
  void set_state(const std::optional<LossScaleState>& state);

  // Multiplies reduced gradients, which are a mean over `mean_over` ranks, by `mean_over` / scale
  // in place. Returns whether one is not finite on any rank, so that the step is skipped. The scale
  // stays.
  //   all_reduce(max) of a flag over the world; nothing when loss scaling is not enabled
  bool unscale(const std::vector<at::Tensor>& grads, Communicator& world, at::Device device,
               double mean_over = 1) const;
  // Ends a step: reduces or increases the scale. Does nothing when it is not enabled.
  void update(bool overflow);

 private:
  LossScaleState initial() const { return {.scale = options_.enabled ? options_.init_scale : 1}; }

  LossScaleOptions options_;
  LossScaleState state_;
};

}  // namespace shardproof
