#include "sim/workload/tp_layer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "collective/mappings.h"

namespace shardproof::sim {
namespace {

using AnyTpLayer = std::variant<ColumnLinear, RowLinear, VocabEmbedding>;

AnyTpLayer made_layer(const TpLayerSpec& spec, InitMethod init, InitFrom from, Communicator& tp) {
  switch (spec.kind) {
    case TpLayerKind::kColumn:
      return ColumnLinear({.label = "column",
                           .input_size = spec.whole_features,
                           .output_size = spec.cut_features,
                           .stride = spec.stride,
                           .sequence_parallel = spec.sequence_parallel,
                           .sequence_dim = 1,
                           .expert = spec.expert_parallel,
                           .expert_parallel = spec.expert_parallel,
                           .dtype = spec.dtype,
                           .init = std::move(init),
                           .init_from = from,
                           .keep_master = true},
                          tp);
    case TpLayerKind::kRow:
      return RowLinear({.label = "row",
                        .input_size = spec.cut_features,
                        .output_size = spec.whole_features,
                        .skip_bias_add = spec.expert_parallel,
                        .stride = spec.stride,
                        .sequence_parallel = spec.sequence_parallel,
                        .sequence_dim = 1,
                        .expert = spec.expert_parallel,
                        .expert_parallel = spec.expert_parallel,
                        .dtype = spec.dtype,
                        .init = std::move(init),
                        .init_from = from,
                        .keep_master = true},
                       tp);
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
