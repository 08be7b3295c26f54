// A token embedding whose rows are cut over tp.
//
//   forward    ids [B, S], global     each rank looks up its own tokens, 0 for others {U_tp}
//              all_reduce to [B, S, E]                 (SP: reduce_scatter to [B, S_tp, E])
//   backward   grad [B, S, E]         nothing          (SP: all_gather from [B, S_tp, E])
//
// The row of pad_token_id gets no gradient. Rows that pad the vocabulary are never looked up, so
// their gradient is 0.
//
// Source: Megatron-LM layers.py, VocabParallelEmbedding.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "model/slot.h"

namespace shardproof {

struct TokenLookup {
  int64_t pad_token_id = -1;  // global; its row gets no gradient; < 0: none
  // The backward adds a token's gradients in a fixed order for any number of threads. On a GPU only
  // the backward of an index does so (it sorts), on the CPU only that of an embedding. (Megatron-LM
  // always uses the index.)
  bool deterministic = false;
};
// This rank's addend of the embedding: rows [V_tp, E] of the ids from `first` on, 0 for other ids.
at::Tensor look_up_own_tokens(const at::Tensor& weight, const at::Tensor& ids, int64_t first,
                              const TokenLookup& lookup);

class VocabParallelEmbedding : public Layer {
 public:
  struct Options {
    std::string label;               // of the collectives: the slot's name
    int64_t pad_token_id = -1;       // global; < 0: none
    bool sequence_parallel = false;  // the output is this rank's part of the sequence
    bool deterministic = false;      // see TokenLookup
  };
  // weight [V_tp, E], padded rows included. `tp` must outlive the layer and its backward.
  VocabParallelEmbedding(ParameterPtr weight, Communicator& tp, Options options)
      : weight_(std::move(weight)), tp_(tp), options_(std::move(options)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override;
  std::vector<ParameterPtr> parameters() const override { return {weight_}; }

 private:
  ParameterPtr weight_;
  Communicator& tp_;
  Options options_;
};

}  // namespace shardproof
