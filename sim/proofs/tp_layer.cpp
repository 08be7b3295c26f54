#include "sim/proofs/tp_layer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "collective/mappings.h"

namespace shardproof::sim {
namespace {

using AnyTpLayer = std::variant<ColumnLinear, RowLinear, VocabEmbedding>;

// What columns and rows take alike.
template <class LinearOptions>
LinearOptions linear_options(const char* label, const TpLayerSpec& spec, InitMethod init,
                             InitFrom from) {
  const std::vector<int64_t> shape = spec.weight_shape();
  LinearOptions options;
  options.label = label;
  options.input_size = shape[1];
  options.output_size = shape[0];
  options.stride = spec.stride;
  options.sequence_parallel = spec.sequence_parallel;
  options.sequence_dim = 1;
  options.expert = spec.expert_parallel;
  options.expert_parallel = spec.expert_parallel;
  options.dtype = spec.dtype;
  options.init = std::move(init);
  options.init_from = from;
  options.keep_master = true;
  return options;
}

AnyTpLayer made_layer(const TpLayerSpec& spec, InitMethod init, InitFrom from, Communicator& tp) {
  switch (spec.kind) {
    case TpLayerKind::kColumn:
      return ColumnLinear(
          linear_options<ColumnLinear::Options>("column", spec, std::move(init), from), tp);
    case TpLayerKind::kRow: {
      auto options = linear_options<RowLinear::Options>("row", spec, std::move(init), from);
      options.skip_bias_add = spec.expert_parallel;
      return RowLinear(std::move(options), tp);
    }
    case TpLayerKind::kEmbedding:
      break;
  }
  return VocabEmbedding({.label = "embedding",
                         .num_embeddings = spec.cut_features,
                         .embedding_dim = spec.whole_features,
                         .reduce_scatter = spec.sequence_parallel,
                         .dtype = spec.dtype,
                         .init = std::move(init),
                         .init_from = from,
                         .keep_master = true},
                        tp);
}

}  // namespace

TpLayerKind tp_layer_kind(const std::string& name) {
  if (name == "column") return TpLayerKind::kColumn;
  if (name == "row") return TpLayerKind::kRow;
  if (name == "embedding") return TpLayerKind::kEmbedding;
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("option layer is '{}'", name),
               .fix = "known are column, row, embedding"});
}

std::vector<int64_t> TpLayerSpec::weight_shape() const {
  return kind == TpLayerKind::kRow ? std::vector<int64_t>{whole_features, cut_features}
                                   : std::vector<int64_t>{cut_features, whole_features};
}

std::vector<int64_t> TpLayerSpec::bias_shape() const {
  if (kind == TpLayerKind::kEmbedding) return {};
  return {weight_shape().front()};
}

std::vector<int64_t> TpLayerSpec::blocks() const {
  return equal_blocks(cut_features, stride, "cut_features");
}

Layout TpLayerSpec::weight_layout() const {
  return Layout({Cut::in_blocks(cut_dim(), axis, blocks())});
}

Layout TpLayerSpec::bias_layout() const {
  return kind == TpLayerKind::kRow ? Layout() : weight_layout();
}

TpLayer::TpLayer(const TpLayerSpec& spec, InitMethod init, InitFrom from, Communicator& tp)
    : tp_(tp), expert_(spec.expert_parallel), layer_(made_layer(spec, std::move(init), from, tp)) {}

LayerParameter& TpLayer::weight() {
  if (auto* column = std::get_if<ColumnLinear>(&layer_)) return *column->weight();
  if (auto* row = std::get_if<RowLinear>(&layer_)) return row->weight();
  return std::get<VocabEmbedding>(layer_).weight();
}

LayerParameter* TpLayer::bias() {
  if (auto* column = std::get_if<ColumnLinear>(&layer_)) return column->bias();
  if (auto* row = std::get_if<RowLinear>(&layer_)) return row->bias();
  return nullptr;
}

std::vector<LayerParameter*> TpLayer::parameters() {
  if (LayerParameter* own = bias()) return {&weight(), own};
  return {&weight()};
}

ShardedState TpLayer::sharded_state(const StateKey& key) const {
  return std::visit([&](const auto& layer) { return layer.sharded_state(key); }, layer_);
}

void TpLayer::load(const ShardedState& saved, const StateKey& key) {
  std::visit([&](auto& layer) { layer.load(saved, key); }, layer_);
}

at::Tensor TpLayer::forward(const at::Tensor& x) {
  if (auto* column = std::get_if<ColumnLinear>(&layer_)) {
    const at::Tensor entering = expert_ ? copy_with_all_reduce_backward(x, tp_, "dispatch") : x;
    return column->forward(entering).output;
  }
  if (auto* row = std::get_if<RowLinear>(&layer_)) {
    const auto [addend, bias] = row->forward(x);
    return expert_ ? all_reduce_with_identity_backward(addend, tp_, "combine") + bias : addend;
  }
  return std::get<VocabEmbedding>(layer_).forward(x);
}

}  // namespace shardproof::sim
