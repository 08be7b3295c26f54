#include "model/rope.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace shardproof {
namespace {

// Llama 3.1: long wavelengths are stretched by `factor`, short ones are kept, and those between are
// interpolated.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  const double context = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2.0 * std::numbers::pi / frequency;
  if (wavelength < context / scaling.high_freq_factor) return frequency;
  if (wavelength > context / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth = (context / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0 - smooth) * frequency / scaling.factor + smooth * frequency;
}

double scaled(double frequency, const RopeScaling& scaling) {
  if (scaling.kind == RopeKind::kLinear) return frequency / scaling.factor;
  if (scaling.kind == RopeKind::kLlama3) return llama3_frequency(frequency, scaling);
  return frequency;
}

// YaRN (Peng et al., arXiv:2309.00071): as in transformers, pairs that turn often within the
// original context are kept, pairs that turn seldom are interpolated, and those between are mixed.
double yarn_frequency(double frequency, int64_t pair, int64_t dim, double theta,
                      const RopeScaling& scaling) {
  const double context = static_cast<double>(scaling.original_max_position_embeddings);
  const auto pair_of_turns = [&](double turns) {
    return static_cast<double>(dim) * std::log(context / (turns * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(theta));
  };
  double low = pair_of_turns(scaling.beta_fast), high = pair_of_turns(scaling.beta_slow);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  const double ramp = std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
  return frequency / scaling.factor * ramp + frequency * (1.0 - ramp);
}

}  // namespace

at::Tensor inverse_frequencies(const ModelConfig& config, bool sliding) {
  const bool local = sliding && config.traits().local_rope;
  const double theta = local ? config.rope_local_theta : config.rope_theta;
  const RopeScaling& scaling = local ? config.rope_local_scaling : config.rope_scaling;
  at::Tensor frequencies = at::empty({config.rotary_dim() / 2}, at::kDouble);
  double* out = frequencies.data_ptr<double>();
  for (int64_t i = 0; i < config.rotary_dim() / 2; ++i) {
    const double exponent = static_cast<double>(2 * i) / static_cast<double>(config.rotary_dim());
    const double frequency = 1.0 / std::pow(theta, exponent);
    out[i] = scaling.kind == RopeKind::kYarn
                 ? yarn_frequency(frequency, i, config.rotary_dim(), theta, scaling)
                 : scaled(frequency, scaling);
  }
  return frequencies;
}

at::Tensor rotary_table(const at::Tensor& positions, const at::Tensor& frequencies, double factor) {
  const at::Tensor angles =
      positions.to(frequencies.scalar_type()).unsqueeze(-1).unsqueeze(-1) * frequencies;
  const at::Tensor table = at::stack({angles.cos(), angles.sin()});
  return factor == 1.0 ? table : table * factor;
}

at::Tensor rotate(const at::Tensor& x, const at::Tensor& table, bool interleaved) {
  const at::Tensor cosine = table.select(0, 0), sine = table.select(0, 1);
  const at::Tensor wide = x.to(table.scalar_type());
  const std::vector<at::Tensor> halves =
      interleaved ? wide.unflatten(-1, {-1, 2}).unbind(-1) : wide.chunk(2, -1);
  return at::cat({halves[0] * cosine - halves[1] * sine, halves[1] * cosine + halves[0] * sine}, -1)
      .to(x.scalar_type());
}

}  // namespace shardproof
