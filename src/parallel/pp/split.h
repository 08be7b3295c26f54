// Which stage of a pipeline holds which parts of the model: the embedding, layers, the final norm,
// the head with the loss, and extra heads. Every other part of the program asks here.
//
//   8 layers on 2 ranks with 2 chunks    stages 0 to 3 hold layers 0 1 | 2 3 | 4 5 | 6 7,
//   in a loop                            rank 0 layers 0 1 and 4 5, rank 1 layers 2 3 and 6 7
//
// Sources: NVIDIA/Megatron-LM megatron/core/transformer/transformer_block.py,
// get_num_layers_to_build; transformer_config.py; pipeline_parallel_layer_layout.py.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/pp/placement.h"

namespace shardproof {

// The keys of parallel.pp that make a split uneven. Layers are named by one of three forms: numbers
// of layers, what counts as a layer, or a layout. Without any of them all stages hold equally many.
struct SplitRules {
  // Layers of rank 0 and of the last rank over all their chunks; 0: as many as the other ranks.
  int64_t first_layers = 0;
  int64_t last_layers = 0;
  // The embedding, or the head, counts as a layer: the first, or the last, stage has one less.
  bool count_embedding = false;
  bool count_head = false;
  // One entry for each stage, separated by "|": "E" the embedding, "t" a layer, "m" an extra head,
  // "L" head and loss. An entry may be empty. "t*3" and "(tt|)*2" repeat; commas mean nothing.
  std::string layout;
};

struct StageParts {
  bool embedding = false;
  int64_t first_layer = 0;  // number in the model; without layers, that of the next stage's
  int64_t layers = 0;
  bool norm = false;  // the final one, before the head and the extra heads
  int64_t extra_heads = 0;
  bool head = false;  // with the loss
  bool operator==(const StageParts&) const = default;
};

// The parts of every stage. The first stage has the embedding and the last one the head. The final
// norm is with the head, but with the last layer if there are extra heads. Those are on the last
// stage, or on a stage of their own that a layout names.
//
// Throws Error(kBadInput) for negative numbers and for a layout that cannot be read. Throws
// Error(kRefused) with numbers that work if layers do not divide as the rules say, if two forms of
// rules are given, or if a layout does not fit the model and the placement.
std::vector<StageParts> split_model(int64_t layers, const Placement& placement,
                                    const SplitRules& rules, int64_t extra_heads = 0);

}  // namespace shardproof
