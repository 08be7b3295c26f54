#include "golden/overflow_skips.h"

#include <ATen/ATen.h>

#include <cfloat>

#include "base/error.h"

namespace shardproof::golden {

OverflowSkips::OverflowSkips(const sim::CaseSpec& spec, bool finds_them,
                             std::shared_ptr<std::vector<bool>> overflows)
    : spec_(spec.loss_scale),
      active_(spec.precision == Precision::kFloat16),
      finds_them_(finds_them),
      overflows_(std::move(overflows)) {
  if (active_) state_.scale = spec_.init_scale;
}

bool OverflowSkips::unscale(const std::vector<at::Tensor>& grads) {
  if (!active_) return false;
  bool finite = true;
  for (const at::Tensor& grad : grads) {
    if (!grad.defined()) continue;
    grad.div_(state_.scale);
    finite = finite && at::isfinite(grad).all().item<bool>();
  }
  bool overflow = !finite;
  if (finds_them_) {
    overflows_->push_back(overflow);
  } else if (overflows_ == nullptr) {
    overflow = false;
  } else {
    SHARDPROOF_ASSERT(!overflows_->empty(), "the float16 run came first");
    overflow = overflows_->front();
    overflows_->erase(overflows_->begin());
  }
  if (overflow) {
    state_ = {state_.scale * spec_.backoff_factor, 0};
  } else if (state_.good_steps + 1 < spec_.growth_interval) {
    ++state_.good_steps;
  } else {
    state_.good_steps = 0;
    const bool fits = state_.scale * spec_.growth_factor <= FLT_MAX;
    if (fits) state_.scale *= spec_.growth_factor;
  }
  return overflow;
}

}  // namespace shardproof::golden
