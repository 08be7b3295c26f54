// The first values of weights whose parts the ranks of tp draw from streams of their own: written
// without the sharded code, from the seeds of Megatron-LM's random.py and the cuts that every
// architecture has.
#pragma once

#include <cstdint>
#include <memory>

#include "model/config.h"
#include "model/weights.h"

namespace shardproof::golden {

// `weights` with each matrix put together from the draws of `tp` ranks, rank r in the stream of
// seed + 2718 + r: first the embedding, then the linears of each layer, then lm_head. Refuses
// models with experts, whose routers no rank has a part of.
std::shared_ptr<const WeightMap> with_own_draws(const WeightMap& weights, const ModelConfig& config,
                                                int64_t tp, int64_t seed);

}  // namespace shardproof::golden
