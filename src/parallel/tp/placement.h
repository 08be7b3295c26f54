// Where the tensors of one slot lie under tensor parallelism: parameters, inputs and output.
//
//   style                   input            weight          output
//   ColumnParallel          R, SP: S(1)      S(0)            S(-1)
//   RowParallel             S(-1)            S(1)            R, SP: S(1)
//   VocabParallelEmbedding  ids              S(0) (padded)   R, SP: S(1)
//   VocabParallelLmHead     R, SP: S(1)      S(0) (padded)   S(-1) (padded)
//   HeadParallelAttention   S(2)                             S(-1)
//   HeadParallelNorm        S(2)             R, partial grad S(2)
//   SequenceNorm            S(1)             R, partial grad S(1)
//
// The probes use this: what they see at a slot is what is written here. Plain arithmetic.
#pragma once

#include <string>
#include <vector>

#include "mesh/layout.h"
#include "parallel/tp/plan.h"

namespace shardproof {

struct ParameterPlacement {
  Layout layout = {};
  std::vector<std::string> partial_grad_axes = {};
  bool sum_grad_over_repeats = false;
};

struct SlotPlacement {
  std::vector<Layout> inputs = {};
  // Per input: axes over which this rank's gradient of it is one addend (kv heads fewer than tp).
  std::vector<std::vector<std::string>> input_partial_axes = {};
  Layout output = {};
  ParameterPlacement weight = {};
  ParameterPlacement bias = {};
};

// Throws Error(kRefused): query heads that tp does not divide; kv heads that neither divide tp nor
// are divided by it. Both say which sizes of tp would work.
SlotPlacement place_slot(const ModelConfig& config, int64_t tp_size, bool sequence_parallel,
                         const SlotStyle& slot);

// The parts of a dim of `global_size`, one per tp rank, as an even or else a torch.chunk cut gives
// them.
std::vector<int64_t> tp_parts(int64_t global_size, int64_t tp_size);

}  // namespace shardproof
