#include "sim/proofs/layer_parameter_inputs.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

namespace shardproof::sim {
namespace {

constexpr int64_t kSavedBiasSeed = 91;

// What a layer of another size than the saved one holds of it; the rest is 0.
at::Tensor fitted(const at::Tensor& drawn, const TpLayerSpec& spec) {
  const at::Tensor weight = at::zeros(spec.weight_shape(), at::kDouble);
  const int64_t dim = spec.cut_dim(), both = std::min(drawn.size(dim), spec.cut_features);
  weight.narrow(dim, 0, both).copy_(drawn.narrow(dim, 0, both));
  return weight;
}

// Dim 0 is samples, dim 1 tokens, dim 2 features.
Layout features_layout(const TpLayerSpec& spec, bool cut_features) {
  Layout layout({Cut::even(0, "dp")});
  if (cut_features) {
    layout.append(Cut::in_blocks(2, spec.axis, spec.blocks()));
  } else if (spec.sequence_parallel) {
    layout.append(Cut::even(1, spec.axis));
  }
  return layout;
}

}  // namespace

Layout layer_output_layout(const TpLayerSpec& spec) {
  if (spec.kind != TpLayerKind::kEmbedding) {
    return features_layout(spec, spec.kind == TpLayerKind::kColumn);
  }
  return spec.sequence_parallel ? Layout({Cut::even(0, spec.axis), Cut::even(1, "dp")})
                                : Layout({Cut::even(0, "dp")});
}

DrawnWeight plainly_drawn(const LayerParameterOptions& options) {
  if (!options.from_streams) return drawn_from_master(options.drawing);
  return drawn_from_streams(options.drawing, options.saves() ? options.saved_tp : options.tp_ranks);
}

at::Tensor bias_values(const LayerParameterOptions& options, const TpLayerSpec& spec) {
  const at::Tensor zeros = at::zeros(spec.bias_shape(), at::kDouble);
  if (!options.saves()) return zeros;
  return zeros.normal_(0, 1, at::detail::createCPUGenerator(kSavedBiasSeed));
}

WorkloadTensors layer_parameter_inputs(Draw& draw, const Options& options) {
  const LayerParameterOptions asked = layer_parameter_options(options);
  const TpLayerSpec& spec = asked.layer;
  std::vector<std::string> addends;  // what the marks leave to others
  if (spec.expert_parallel) addends.push_back("dp");
  const at::Tensor weight = fitted(plainly_drawn(asked).values, spec);
  if (asked.embedding()) {
    return {{"x", draw.integers(spec.cut_features, {asked.samples, asked.tokens}),
             Layout({Cut::even(0, "dp")})},
            {"weight", weight, spec.weight_layout(), addends}};
  }
  const bool row = spec.kind == TpLayerKind::kRow;
  const int64_t in = row ? spec.cut_features : spec.whole_features;
  return {{"x", draw.normal({asked.samples, asked.tokens, in}), features_layout(spec, row)},
          {"weight", weight, spec.weight_layout(), addends},
          {"bias", bias_values(asked, spec), spec.bias_layout(), addends}};
}

}  // namespace shardproof::sim
