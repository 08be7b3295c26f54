// Cuts all tensors that have a sequence dim by one layout.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "sequence/sequence_layout.h"

namespace shardproof {

// A tensor with a sequence dim of the padded row's length T: token ids, positions, masks, labels.
struct SequenceBuffer {
  at::Tensor tensor;
  int64_t sequence_dim = 1;
};

// The part of each buffer that `cp_rank` holds, as new tensors in its local order. Positions are
// cut too, so that under zigzag a token keeps the position in its sequence; a table made from the
// local length would be wrong.
//
// Communication   none
// Throws          Error(kBadInput): a buffer whose dim is missing or not T long
// Source          NeMo-RL dtensor_policy_worker.py, context_parallel(buffers, buffer_seq_dims)
std::vector<at::Tensor> shard_buffers(const std::vector<SequenceBuffer>& buffers,
                                      const SequenceLayout& layout, int64_t cp_rank);

// [T_cp] int64: the position within its sequence of each local token, for rope.
at::Tensor local_positions(const SequenceLayout& layout, int64_t cp_rank);

}  // namespace shardproof
