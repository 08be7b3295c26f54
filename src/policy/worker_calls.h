// What a policy's calls ask of their data, and the global batches in it.
#pragma once

#include <cstdint>
#include <vector>

#include "model/batch.h"
#include "train/loss.h"

namespace shardproof {

// Dim 1 of every tensor that has one is the sequence. Throws Error(kBadInput).
void check_sequence_dims(const Batch& data);
// The masks that a loss counts by; without a token_mask a loss over sequences counts every token.
// Throws Error(kBadInput): no sample_mask; a loss over tokens and no token_mask.
Batch with_masks(Batch data, const LossOptions& loss);
// Neighbouring samples, `size` at a time; <= 0: all of them. Views. Throws Error(kBadInput): they
// do not divide.
std::vector<Batch> global_batches(const Batch& data, int64_t size);

}  // namespace shardproof
