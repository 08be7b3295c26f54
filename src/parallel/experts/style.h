// Expert parallelism, as a style of the mesh parts ep, etp and edp (mesh/training_axes.h).
#pragma once

#include "base/training_choices.h"
#include "parallel/style/style.h"

namespace shardproof {

struct ExpertParallelOptions {
  ExpertDispatch dispatch = ExpertDispatch::kAllToAll;
  int64_t rows_multiple = 1;  // of the rows that an expert computes, with zeros behind its own
};

// Cuts the experts of each layer over ep, and each expert's width over etp, and replaces the layers
// that run them by a dispatch (dispatch.h). The ranks of ep may have other tokens by dp, cp,
// ulysses and, with sequence parallelism, tp.
//
//   gate_up [N, 2F, E]    N over ep, the blocks {F, F} over etp
//   down    [N, E, F]     N over ep, F over etp
//   gate_up [N, E, 2F], gate_up_bias [N, 2F], down [N, F, E] with columns in turn: the same, as
//                         even parts of whole pairs; down_bias [N, E] over ep alone
//   gradients             sums over ep and etp by the backward, the rest over edp
//
// place() throws Error(kRefused), with sizes that work, when ep does not divide the experts, etp
// not their width, or the model has none.
//
// Source   NVIDIA/Megatron-LM megatron/core/transformer/moe/experts.py, TEGroupedMLP, and
//          megatron/core/parallel_state.py, expert_decoder_rank_generator
class ExpertParallel : public ParallelStyle {
 public:
  explicit ExpertParallel(ExpertParallelOptions options) : options_(options) {}
  std::string_view name() const override { return "experts"; }
  std::vector<std::string> axes() const override { return {}; }
  void place(Decoder& model, const Mesh& mesh) const override;
  void install(Decoder& model, MeshComm& comm) const override;

 private:
  ExpertParallelOptions options_;
};

}  // namespace shardproof
