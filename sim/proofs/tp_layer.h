// One of the tensor-parallel layers that have parameters, by the name of its kind: what a workload
// does alike with all of them.
//
//   column      weight [cut, whole], bias [cut]      src/parallel/tp/column_linear.h
//   row         weight [whole, cut], bias [whole]    src/parallel/tp/row_linear.h
//   embedding   weight [cut, whole]                  src/parallel/tp/vocab_embedding.h
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "mesh/layout.h"
#include "parallel/tp/column_linear.h"
#include "parallel/tp/row_linear.h"
#include "parallel/tp/vocab_embedding.h"

namespace shardproof::sim {

enum class TpLayerKind { kColumn, kRow, kEmbedding };

// Throws Error(kBadInput) with the known names.
TpLayerKind tp_layer_kind(const std::string& name);

struct TpLayerSpec {
  TpLayerKind kind = TpLayerKind::kColumn;
  int64_t cut_features = 0, whole_features = 0;
  int64_t stride = 1;              // blocks of the cut features; not of an embedding
  bool sequence_parallel = false;  // tokens are dim 1 of a linear layer's x and y
  bool expert_parallel = false;    // an expert's, of experts that are spread: not of an embedding
  at::ScalarType dtype = at::ScalarType::Double;
  std::string axis = "tp";  // of the mesh: whose ranks hold the parts

  int64_t cut_dim() const { return kind == TpLayerKind::kRow ? 1 : 0; }
  std::vector<int64_t> weight_shape() const;
  std::vector<int64_t> bias_shape() const;  // empty: an embedding has none
  // Throws Error(kRefused): a stride that does not divide.
  std::vector<int64_t> blocks() const;
  // The cuts of the parameters over `axis`. They throw what blocks() throws.
  Layout weight_layout() const;
  Layout bias_layout() const;
};

class TpLayer {
 public:
  // Throws what the layers throw. `init` of the weight; a master is kept where there is one.
  TpLayer(const TpLayerSpec& spec, InitMethod init, InitFrom from, Communicator& tp);

  LayerParameter& weight();
  LayerParameter* bias();                     // null: none
  std::vector<LayerParameter*> parameters();  // weight, bias
  ShardedState sharded_state(const StateKey& key) const;
  void load(const ShardedState& saved, const StateKey& key);
  // x [B, S, ..] or ids [B, S]; an embedding's y is [S_tp, B, E] with sequence_parallel. Around an
  // expert the caller communicates: the gradient of its x is summed, or its y is.
  at::Tensor forward(const at::Tensor& x);

 private:
  Communicator& tp_;
  bool expert_;
  std::variant<ColumnLinear, RowLinear, VocabEmbedding> layer_;
};

}  // namespace shardproof::sim
