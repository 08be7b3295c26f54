// The steps before and after a model whose sequences are cut evenly over the Ulysses ranks: ids are
// padded and sliced, results are gathered and unpadded.
//
//   7 tokens, U = 2    padded  0 1 2 3 4 5 6 .     rank 0: 0 1 2 3    rank 1: 4 5 6 .
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "comm/communicator.h"

namespace shardproof {

struct SlicedInputs {
  at::Tensor input_ids;                                   // [B, S_padded / U] this rank's slice
  std::optional<at::Tensor> position_ids = std::nullopt;  // [B, S_padded] padded, not sliced
  int64_t padding = 0;                                    // S_padded - S
};

// Pads to the next multiple of U: ids with 0, positions with 0, 1, 2, ... as a separate sequence.
// The inputs must be the same on every rank of the group.
//
//   input_ids      [B, S] int64
//   position_ids   [B, S] int64, or none
//
// Communication   none
// Throws          Error(kBadInput): ids whose shape is not [B, S], positions of another shape
// Source          LightRFT parallel_utils.py, sp_slice_and_pad_input (there positions need B = 1)
SlicedInputs slice_and_pad_inputs(const at::Tensor& input_ids,
                                  const std::optional<at::Tensor>& position_ids,
                                  const Communicator& ulysses);

// Gathers `dim` over the group and drops the last `padding` entries of `unpad_dim`. All ranks must
// compute the same from the result: each holds the whole gradient, so the backward keeps this
// rank's slice and sums nothing.
//
//   local     [.., D / U, ..]
//   returns   [.., D, ..] without the padding
//
// Forward   all_gather
// Backward  slice; the gradient of padding is exactly 0
// Throws    Error(kBadInput): a padding that is negative or longer than the dim
// Source    LightRFT parallel_utils.py, gather_forward_split_backward_and_unpad
at::Tensor gather_and_unpad(const at::Tensor& local, Communicator& ulysses, int64_t dim,
                            int64_t unpad_dim, int64_t padding, std::string_view label);

}  // namespace shardproof
