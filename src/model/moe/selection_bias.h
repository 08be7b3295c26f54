// The update of a router's selection bias after each optimizer step: experts with fewer routes than
// the average become easier to choose, the others harder. It is a rule and not a gradient.
//
// Sources: NVIDIA/Megatron-LM megatron/core/transformer/moe/moe_utils.py, get_updated_expert_bias;
// pytorch/torchtitan components/optimizer/optimizer.py, register_moe_load_balancing_hook, which
// centers; arXiv 2408.15664. No communication. Golden: golden/dense_side_losses.h.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/expert_choices.h"

namespace shardproof {

// [N] int64: how often each expert stands in ids [.., K]; -1 counts for none.
at::Tensor route_counts(const at::Tensor& ids, int64_t num_experts);

// counts [N] int64 of the routes of a whole step, before any is dropped -> what a bias moves by, in
// float64: rate * sign(mean of the counts - count). Compared as integers, so that all ranks get the
// same bits.
at::Tensor selection_bias_move(const at::Tensor& counts, const BiasRule& rule);

}  // namespace shardproof
