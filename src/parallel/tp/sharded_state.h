// What a checkpoint needs to know of one rank's tensors: which part of which full tensor each is,
// so that it can be loaded at any tp size.
//
//   key "mlp.gate_up.weight", global shape [12, 5], blocks 6|6, 3 ranks; rank 1 holds
//     offset [2, 0]  shape [2, 5]     of the gate
//     offset [8, 0]  shape [2, 5]     of the up
//
// A replica id {0, tp, dp}: who holds an equal copy; the one of zeros is the copy to write.
// Prepended axes stack layers: a tensor of layer 3 of 8 is [1, ..] at offset [3, ..] of [8, ..].
//
// Source: Megatron-LM layers.py, sharded_state_dict (make_sharded_tensors_for_checkpoint). There a
// rank's part is one run, also of a layer with stride: loaded at another tp size, its features are
// mixed up. Here such a part is one run per block; asked for as one run it is refused.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "parallel/tp/layer_parameter.h"

namespace shardproof {

struct ShardedTensor {
  std::string key;
  at::Tensor data;                    // this rank's run, prepended axes as size 1
  std::vector<int64_t> global_shape;  // of the full tensor, prepended axes included
  std::vector<int64_t> global_offset;
  std::array<int64_t, 3> replica_id = {};
  bool allow_shape_mismatch = false;
  bool main_replica() const { return replica_id == std::array<int64_t, 3>{}; }
};
using ShardedState = std::vector<ShardedTensor>;

struct PrependedAxis {
  int64_t index = 0, size = 1;
};

enum class RunForm {
  kPerBlock,  // one run per block
  kPerRank    // one run per rank, for formats that know no other. Error(kRefused) of several blocks
};

struct StateKey {
  std::string prefix = "";  // "decoder.layers.3.mlp.": the parameter's name follows
  std::vector<PrependedAxis> prepended = {};
  int64_t data_parallel_rank = 0;
  bool allow_shape_mismatch = false;  // dim 0 may have another size in the checkpoint
  RunForm form = RunForm::kPerBlock;
};

// Views of the parameter: what is written into them is written into it.
void append_sharded(ShardedState& state, const LayerParameter& parameter, const StateKey& key,
                    const Communicator& tp);

// Fills the parameter from what all ranks of the saving world had (main replicas count). With
// allow_shape_mismatch what the checkpoint does not reach is 0.
// Throws Error(kBadInput): an unknown key (with the nearest one), another global shape (both
// shapes), elements that no run holds (how many), several blocks in a checkpoint of another size,
// where they begin elsewhere.
void load_sharded(const ShardedState& saved, LayerParameter& parameter, const StateKey& key,
                  const Communicator& tp);

}  // namespace shardproof
