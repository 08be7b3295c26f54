// The vocabulary-parallel embedding that a framework offers, with all its options. It owns its
// weight. (vocab_parallel_embedding.h is the plan's: it stands in a model's slot. Both look tokens
// up with the same function.)
//
//   forward    ids [B, S], global   each rank looks up its own tokens, 0 for the others {U_tp}
//              all_reduce to [B, S, E]   (reduce_scatter: transposed, to [S_tp, B, E])
//   backward   grad [B, S, E]       nothing  (reduce_scatter: all_gather from [S_tp, B, E])
//
// Golden  weight[ids] on one device.
// Source  Megatron-LM layers.py, VocabParallelEmbedding. There, with several ranks, an id outside
// the vocabulary is nobody's and gives zeros; here it is an error on any number of ranks.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "parallel/tp/layer_parameter.h"
#include "parallel/tp/sharded_state.h"

namespace shardproof {

class VocabEmbedding {
 public:
  struct Options {
    std::string label = "vocab_embedding";  // of the collectives
    int64_t num_embeddings = 0;             // V, a multiple of the ranks
    int64_t embedding_dim = 0;              // E
    bool reduce_scatter = false;            // to [S_tp, B, E], for sequence-parallel layers
    bool deterministic = false;             // a backward that adds a token's gradients in one order
    at::ScalarType dtype = at::ScalarType::Float;
    InitMethod init = {};  // null: zeros
    InitFrom init_from = InitFrom::kMaster;
    bool keep_master = false;
  };

  // Throws Error(kRefused) with both numbers: V does not divide by the ranks.
  VocabEmbedding(Options options, Communicator& tp);
  // Throws Error(kBadInput): an id outside [0, V) (seen of ids on the CPU only); Error(kRefused)
  // with both numbers: reduce_scatter of a sequence that does not divide.
  at::Tensor forward(const at::Tensor& ids);

  LayerParameter& weight() { return weight_; }

  // Cut along dim 0. A checkpoint of another padded vocabulary fits (allow_shape_mismatch): rows
  // that both have are loaded, further rows of this layer are 0.
  ShardedState sharded_state(const StateKey& key) const;
  void load(const ShardedState& saved, const StateKey& key);

 private:
  Options options_;
  Communicator& tp_;
  LayerParameter weight_;
};

}  // namespace shardproof
