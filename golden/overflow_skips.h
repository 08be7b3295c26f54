// Dynamic loss scaling on one device, and which training steps an overflow skips.
//
//   step    gradients of loss * scale; one not finite: the step is skipped, scale * backoff_factor
//           else the gradients / scale count; growth_interval such steps: scale * growth_factor,
//           unless float32 cannot hold that
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
  // `overflows`: written by a run in float16, read by one in float64, where nothing overflows: both
  // skip the same steps. In cases of other precisions the scale stays 1 and no step is skipped.
  OverflowSkips(const sim::CaseSpec& spec, bool finds_them,
                std::shared_ptr<std::vector<bool>> overflows);
  bool active() const { return active_; }
  double scale() const { return state_.scale; }
  // Divides by the scale in place; whether the step is skipped. Once a step: the scale moves on.
  bool unscale(const std::vector<at::Tensor>& grads);

  // What a checkpoint keeps of it, as torch.amp.GradScaler.state_dict does: the scale and the good
  // steps since it last changed.
  struct State {
    double scale = 1;
    int64_t good_steps = 0;
  };
  const State& state() const { return state_; }
  void set_state(const State& state) { state_ = state; }

 private:
  sim::LossScaleSpec spec_;
  bool active_, finds_them_;
  std::shared_ptr<std::vector<bool>> overflows_;
  State state_;
};

}  // namespace shardproof::golden
