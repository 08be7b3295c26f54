#include "sim/world/rank/member_noise.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <filesystem>

#include "model/weights.h"
#include "sim/case/recorder/rounding_noise.h"
#include "sim/case/recorder/score_noise.h"
#include "sim/case/reference.h"
#include "sim/judge/diff/tolerance.h"
#include "tensor/shard.h"

namespace shardproof::sim::world {

namespace {

std::string key_of(const Observation& observation) {
  return record_key(observation.phase, observation.step, observation.name);
}

}  // namespace

std::shared_ptr<const MemberNoise> MemberNoise::of(const CaseSpec& spec) {
  const std::string& folder = spec.reference.folder;
  const int64_t run = folder.empty() ? kExactRun : run_of_folder(folder);
  if (run < 1) return nullptr;
  auto noise = std::make_shared<MemberNoise>();
  noise->seed_ = spec.seed;
  noise->prefix_ = fmt::format("run {} ", run);
  const bool wide = spec.precision == Precision::kFloat64;
  noise->roundings_ = roundings_of_member(wide ? at::kDouble : at::kFloat);
  noise->roundings_of_gradient_ =
      wide ? noise->roundings_
           : judge::eps_of_precision(spec.precision) / judge::eps_of_precision(Precision::kFloat32);
  noise->errors_ = read_errors(std::filesystem::path(folder).parent_path().string());
  return noise;
}

at::Tensor MemberNoise::moved(const at::Tensor& value, const std::string& stream) const {
  if (!value.is_floating_point()) return value;  // the experts of a token
  return moved_by_rounding(value, seed_, prefix_ + stream, roundings_);
}

void MemberNoise::wrap(Decoder& model) const {
  move_scores(model, roundings_, [this](const at::Tensor& like, const std::string& of) {
    return uniform_noise(like, seed_, prefix_ + of);
  });
  change_outputs(
      model, [this](const at::Tensor& output, const std::string& slot, const StepContext& context) {
        return moved(output, fmt::format("{} {} {}", slot, context.step, context.microbatch));
      });
}

void MemberNoise::move_gradient(const Observation& gradient) const {
  const at::Tensor& tensor = gradient.tensor;
  tensor.copy_(
      moved_by_rounding(tensor, seed_, prefix_ + key_of(gradient), roundings_of_gradient_));
}

void MemberNoise::doubt_gradient(const Observation& gradient) const {
  const std::string key = key_of(gradient);
  const auto found = errors_.find(key);
  if (found == errors_.end() || !std::isfinite(found->second)) return;
  const at::Tensor& tensor = gradient.tensor;
  tensor.copy_(doubted_within(tensor, found->second, seed_, prefix_ + "error of " + key));
}

void GradientNoiseProbe::observe(const Observation& observation) {
  const at::NoGradGuard no_grad;
  const bool is_gradient = observation.kind == ObservationKind::kGradient;
  if (is_gradient) noise_->move_gradient(observation);
  inner_.observe(observation);
  if (is_gradient) noise_->doubt_gradient(observation);
}

bool draws_own_shards(const CaseSpec& spec) {
  const bool has_part = spec.reference.is_set() || !spec.reference.folder.empty();
  return has_part && spec.weights_folder.empty();
}

void draw_own_shards(const CaseSpec& spec, const ModelConfig& config, Trainer& trainer,
                     const Mesh& mesh, int64_t rank) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor>& masters = trainer.masters();
  for (size_t i = 0; i < masters.size(); ++i) {
    const Parameter& parameter = *trainer.parameters()[i];
    const at::Tensor full = seeded_weight(config, spec.seed, parameter.name);
    // In place: new tensors between the full ones would leave holes that no full one fits in.
    masters[i].copy_(cut(full, parameter.layout, mesh, rank));
  }
  trainer.restore(masters, trainer.states(), /*step=*/0);  // the leaves follow
}

judge::FullSizes full_sizes(const ModelConfig& config, const Batch& batch) {
  return {.parameters = weight_shapes(config),
          .samples = batch.size(),
          .seq_len = batch.seq_len(),
          .vocab_size = config.vocab_size,
          .intermediate_size = config.intermediate_size,
          .shared_width = config.shared_width};
}

}  // namespace shardproof::sim::world
