// Dynamic loss scaling on one device, and the training steps that overflows skip.
//
//   step    computes the gradients of loss * scale. If one is not finite, the step is skipped and
//           the scale becomes scale * backoff_factor. Otherwise the step uses gradients / scale;
//           after growth_interval such steps the scale becomes scale * growth_factor, if float32
//           can hold that
//
// Source: torch.amp.GradScaler.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "sim/case/case_spec.h"

namespace shardproof::golden {

class OverflowSkips {
 public:
  // `overflows` is written by a float16 run and read by a float64 run, which never overflows: both
  // skip the same steps; none is skipped where it is null. In other precisions the scale stays 1
  // and no step is skipped.
  OverflowSkips(const sim::CaseSpec& spec, bool finds_them,
                std::shared_ptr<std::vector<bool>> overflows);
  bool active() const { return active_; }
  double scale() const { return state_.scale; }
  // Divides by the scale in place and updates the scale. Returns whether the step is skipped. Call
  // it once per step.
  bool unscale(const std::vector<at::Tensor>& grads);

  // The state in a checkpoint, as in torch.amp.GradScaler.state_dict: the scale, and the number of
  // good steps since it last changed.
  struct State {
    double scale = 1;
    int64_t good_steps = 0;
  };
  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  LossScaleOptions spec_;
  bool active_, finds_them_;
  std::shared_ptr<std::vector<bool>> overflows_;
  State state_;
};

}  // namespace shardproof::golden
