// The names of expert weights in a folder. In memory, and in folders of this program, one tensor
// holds those of all experts of a layer: mlp.experts.gate_up_proj [N, 2F, E] and down_proj
// [N, E, F]. Other folders have a tensor for each expert and projection.
//
//   qwen3_moe   mlp.experts.<j>.{gate_proj, up_proj, down_proj}.weight
//   mixtral     block_sparse_moe.experts.<j>.{w1, w3, w2}.weight; its router is
//               block_sparse_moe.gate.weight
#pragma once

#include <string>

#include "model/weights.h"

namespace shardproof {

// Replaces the tensors of each expert by those of all. Throws Error(kBadInput) for a tensor that
// one expert lacks, or that has another shape than those of its kind.
void stack_expert_weights(WeightMap& weights, const ModelConfig& config, const std::string& folder);

}  // namespace shardproof
