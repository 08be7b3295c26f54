#include "train/loss_scale.h"

#include <ATen/ATen.h>

#include <limits>

namespace shardproof {

LossScale::LossScale(const LossScaleOptions& options) : options_(options), state_(initial()) {}

void LossScale::set_state(const std::optional<LossScaleState>& state) {
  if (options_.enabled) state_ = state.value_or(initial());
}

bool LossScale::unscale(const std::vector<at::Tensor>& grads, Communicator& world,
                        at::Device device, double mean_over) const {
  if (!options_.enabled) return false;
  const at::NoGradGuard no_grad;
  bool finite = true;
  for (const at::Tensor& grad : grads) {
    grad.mul_(mean_over / state_.scale);
    finite = finite && grad.isfinite().all().item<bool>();
  }
  const at::Tensor flag = at::scalar_tensor(finite ? 0 : 1, at::kLong).to(device);
  const at::Tensor any = world.all_reduce(flag, ReduceOp::kMax, "gradient overflow");
  return any.item<int64_t>() != 0;
}

void LossScale::update(bool overflow) {
  if (!options_.enabled) return;
  if (overflow) {
    state_ = {state_.scale * options_.backoff_factor, 0};
  } else if (++state_.good_steps >= options_.growth_interval) {
    const double grown = state_.scale * options_.growth_factor;
    state_ = {grown <= std::numeric_limits<float>::max() ? grown : state_.scale, 0};
  }
}

}  // namespace shardproof
