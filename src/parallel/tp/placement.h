// The layouts of one slot under tensor parallelism: of its parameters, inputs and output.
//
//   style                   input            weight          output
//   ColumnParallel          R, SP: S(1)      S(0)            S(-1)
//   RowParallel             S(-1)            S(1)            R, SP: S(1)
//   VocabParallelEmbedding  ids              S(0) (padded)   R, SP: S(1)
//   VocabParallelLmHead     R, SP: S(1)      S(0) (padded)   S(-1) (padded)
//   HeadParallelAttention   S(2)                             S(-1)
//   HeadParallelNorm        S(2)             R, partial grad S(2)
//   SequenceNorm            S(1)             R, partial grad S(1)
//   SequenceExperts         S(1)             R, partial grad S(1)
//
// The probes read these layouts to describe the tensors that they see. Plain arithmetic.
#pragma once

#include <string>
#include <vector>

#include "mesh/layout.h"
#include "parallel/tp/plan.h"

namespace shardproof {

struct ParameterPlacement {
  Layout layout = {};
  // Axes over which each rank's gradient is one addend (GradientRule::sum_over).
  std::vector<std::string> sum_grad_over = {};
};

struct SlotPlacement {
  std::vector<Layout> inputs = {};
  // For each input: axes over which each rank's gradient is one addend (kv heads fewer than tp).
  std::vector<std::vector<std::string>> input_partial_axes = {};
  Layout output = {};
  ParameterPlacement weight = {};
  ParameterPlacement bias = {};
};

// Throws Error(kRefused), with the sizes of tp that work, when tp does not divide the query heads,
// or when neither of tp and the kv heads divides the other.
SlotPlacement place_slot(const ModelConfig& config, int64_t tp_size, bool sequence_parallel,
                         const SlotStyle& slot);

// Whether a slot's output joins the residual stream: embedding, o_proj, down_proj.
bool opens_stream(SlotRole role);

// The sizes of the parts of a dim, one per tp rank: even, or by torch.chunk's rule if tp does not
// divide the dim.
std::vector<int64_t> tp_parts(int64_t global_size, int64_t tp_size);

}  // namespace shardproof
