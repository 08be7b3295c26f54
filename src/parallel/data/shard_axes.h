// The ranks over which parameters are sharded, and those over which they are copied.
//
//   dp = 4, cp = 2, tp = 2     shard        replicate
//   replicate                  -            dp+cp
//   fsdp                       dp+cp        -
//   hybrid, 2 copies           dp+cp%4      dp+cp//4      dp 0 and 1 hold one copy, 2 and 3 another
//
// Tensor-parallel ranks hold their own shards, which are cut again.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/training_choices.h"
#include "mesh/mesh.h"

namespace shardproof {

struct FsdpOptions {
  DataParallelKind kind = DataParallelKind::kReplicate;
  int64_t replicate_size = 1;          // kHybrid: number of copies of the model along dp
  bool reshard_after_forward = true;   // false: parameters stay whole until their backward
  bool prefetch = true;                // gather the next unit while this one computes
  bool reduce_each_microbatch = true;  // false: keep whole gradients until the last one
  bool cpu_offload = false;            // shards, their gradients and the optimizer on the CPU
  GradientPlace gradients = GradientPlace::kAutograd;  // of the weights of linears
};

// Names of axes for Mesh; "" where there is only one rank.
struct ShardAxes {
  std::string shard;
  std::string replicate;
};

// `token_axes`: over which ranks hold different tokens. Throws Error(kRefused) when the number of
// copies does not divide dp or the ranks of these axes.
ShardAxes shard_axes(const Mesh& mesh, const std::vector<std::string>& token_axes,
                     const FsdpOptions& options);

}  // namespace shardproof
