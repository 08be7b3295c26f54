#include "golden/perturbation.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

#include "golden/parted_sums.h"
#include "model/precision.h"
#include "sim/case/record/golden_record.h"
#include "sim/case/recorder/rounding_noise.h"
#include "sim/case/recorder/score_noise.h"

namespace shardproof::golden {
Perturbation::Perturbation(int64_t member, int64_t seed, Errors errors, double roundings)
    : seed_(seed),
      prefix_(fmt::format("member {} ", member)),
      parts_(int64_t{1} << (1 + (member - 1) % 4)),
      doubts_gradients_((member - 1) / 4 % 2 == 0),
      errors_(std::move(errors)),
      roundings_(roundings) {}

double Perturbation::error_of(const std::string& key) const {
  const auto found = errors_.find(key);
  return found == errors_.end() || !std::isfinite(found->second) ? 0 : found->second;
}

at::Tensor Perturbation::moved(const at::Tensor& value, const std::string& stream) const {
  if (!value.is_floating_point()) return value;  // the experts of a token
  return sim::moved_by_rounding(value, seed_, prefix_ + stream, roundings_);
}

at::Tensor Perturbation::row_moves(const at::Tensor& logits, const std::string& stream) const {
  const at::ScalarType wide = wider_type(logits.scalar_type());
  const at::Tensor sums = logits.detach().to(wide).logsumexp(-1, /*keepdim=*/true);
  const at::Tensor most = sums.to(at::kDouble).abs().clamp_min(2) * sim::half_gap(wide);
  return (sim::uniform_noise(sums, seed_, prefix_ + "row " + stream) * most * roundings_).to(wide);
}

at::Tensor Perturbation::doubted_gradient(const at::Tensor& gradient, const std::string& parameter,
                                          int64_t step) const {
  if (!doubts_gradients_) return gradient;
  const std::string key = sim::record_key(Phase::kStep, step, "grad." + parameter);
  return sim::doubted_within(gradient, error_of(key), seed_, prefix_ + "error of " + key);
}

at::Tensor Perturbation::doubt(const at::Tensor& logprobs, int64_t step) const {
  const double width = error_of(sim::record_key(Phase::kForward, step, "logprobs"));
  return sim::uniform_noise(logprobs, seed_, fmt::format("{}doubt {}", prefix_, step))
      .mul_(width)
      .exp_()
      .to(logprobs.scalar_type());
}

void Perturbation::wrap(Decoder& model) const {
  overflow_in_parts(model, parts_);
  sim::move_scores(model, roundings_,
                   [seed = seed_, prefix = prefix_](const at::Tensor& like, const auto& of) {
                     return sim::uniform_noise(like, seed, prefix + of);
                   });
  sim::change_outputs(model, [mover = *this](const at::Tensor& output, const std::string& slot,
                                             const StepContext& context) {
    return mover.moved(output, fmt::format("{} {}", slot, context.step));
  });
}

}  // namespace shardproof::golden
