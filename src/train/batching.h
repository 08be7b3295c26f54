// How a dp rank's share of the global batch becomes microbatches: samples in order, sequences
// packed into rows within a token budget, or rows of similar length within a budget.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/training_choices.h"
#include "model/batch.h"
#include "train/microbatch.h"

namespace shardproof {

// The multiples that the mesh requires of lengths.
struct SequencePadding {
  int64_t sequence_multiple = 1;  // for each sequence of a packed row: 2*cp for zigzag
  int64_t row_multiple = 1;       // for every row; a multiple of the other: 2*cp*ulysses*tp
};

// The microbatches of one dp rank. Every rank gets the same number, if necessary with dummies, and
// with `fitting` the number that it makes of the largest one (TokenCuts::fitting_microbatches);
// kFixed gets no dummies for that.
// Every rank computes those of the others from the batch, which it also holds: no communication.
//
//   kFixed     samples in contiguous uneven shares, `micro_batch_size` of them at a time
//   kPacked    first fit decreasing: each rank packs its own share; balanced: bins of similar size
//              over the whole batch, equally many for every rank
//   kDynamic   each rank's own share, by length
//
// `samples_together` neighbors stay in one microbatch (pairs: 2). It must divide micro_batch_size
// and the batch.
//
// Throws Error(kBadInput) for a sequence that is longer than the budget, including padding, and
// Error(kRefused) for samples that stay together with another kind than kFixed.
// Source: NeMo-RL dtensor_policy_worker.py, train: fixed microbatches, dynamic batching, sequence
// packing.
std::vector<Microbatch> deal_batches(const Batch& batch, int64_t dp_size, int64_t dp_rank,
                                     const BatchingOptions& options, const SequencePadding& padding,
                                     int64_t samples_together = 1,
                                     const std::function<int64_t(int64_t)>& fitting = {});

}  // namespace shardproof
