#include "golden/overflow_skips.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace shardproof::golden {

OverflowSkips::OverflowSkips(const sim::CaseSpec& spec, bool finds_them,
                             std::shared_ptr<std::vector<bool>> overflows)
    : spec_(spec.loss_scale),
      active_(spec.precision == "float16"),
      finds_them_(finds_them),
      overflows_(std::move(overflows)) {
  if (active_) scale_ = spec_.init_scale;
}

bool OverflowSkips::unscale(const std::vector<at::Tensor>& grads) {
  if (!active_) return false;
  bool finite = true;
  for (const at::Tensor& grad : grads) {
    grad.div_(scale_);
    finite = finite && at::isfinite(grad).all().item<bool>();
  }
  bool overflow = !finite;
  if (finds_them_) {
    overflows_->push_back(overflow);
  } else {
    SHARDPROOF_ASSERT(!overflows_->empty(), "the float16 run came first");
    overflow = overflows_->front();
    overflows_->erase(overflows_->begin());
  }
  if (overflow) {
    scale_ *= spec_.backoff_factor;
    good_steps_ = 0;
  } else if (++good_steps_ == spec_.growth_interval) {
    scale_ *= spec_.growth_factor;
    good_steps_ = 0;
  }
  return overflow;
}

}  // namespace shardproof::golden
