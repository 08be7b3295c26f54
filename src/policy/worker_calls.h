// The requirements of a policy's calls on their data, and the global batches in it.
#pragma once

#include <cstdint>
#include <vector>

#include "model/batch.h"
#include "train/loss.h"

namespace shardproof {

// Throws Error(kBadInput) unless dim 1 of every tensor that has one is the sequence.
void check_sequence_dims(const Batch& data);
// The masks by which a loss counts. Without a token_mask a loss over sequences counts every token.
// Throws Error(kBadInput) without a sample_mask, and for a loss over tokens without a token_mask.
Batch with_masks(Batch data, const LossOptions& loss);
// Views of neighboring samples, `size` at a time; <= 0: all of them. Throws Error(kBadInput) when
// `size` does not divide them.
std::vector<Batch> global_batches(const Batch& data, int64_t size);

}  // namespace shardproof
