// The ids that lie a number of tokens further on, within each sequence of a microbatch.
// Source: NVIDIA/Megatron-LM megatron/core/transformer/multi_token_prediction.py, roll_tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "train/microbatch.h"

namespace shardproof {

// ids[next] of [b, s], and 0 where `next` is -1 because the sequence ends.
at::Tensor next_tokens(const at::Tensor& ids, const at::Tensor& next);

// [count] of [b, s]: the ids 1, 2, .. tokens further on in each sequence, 0 where it has ended.
// Sequences of a packed row end where the next one begins. No communication.
std::vector<at::Tensor> ids_ahead(const Microbatch& micro, int64_t count);

}  // namespace shardproof
