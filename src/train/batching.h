// How a dp rank's share of the global batch becomes microbatches: samples as they come, sequences
// packed into rows under a token budget, or rows of like length under one.
#pragma once

#include <cstdint>
#include <vector>

#include "model/batch.h"
#include "train/microbatch.h"

namespace shardproof {

enum class BatchingKind { kFixed, kPacked, kDynamic };
enum class PackAlgorithm { kFirstFitDecreasing, kBalanced };

struct BatchingOptions {
  BatchingKind kind = BatchingKind::kFixed;
  int64_t micro_batch_size = 0;  // kFixed; <= 0: the rank's whole share
  // kPacked: positions of a row; kDynamic: rows times their length. <= 0: the whole share at once.
  int64_t token_budget = 0;
  PackAlgorithm algorithm = PackAlgorithm::kFirstFitDecreasing;  // kPacked
  int64_t length_round = 1;  // kDynamic: rows are as long as the longest, rounded up to this
};

// What the mesh asks of lengths.
struct SequencePadding {
  int64_t sequence_multiple = 1;  // of each sequence of a packed row: 2*cp for zigzag
  int64_t row_multiple = 1;       // of every row; a multiple of the other: 2*cp*ulysses*tp
};

// The microbatches of one dp rank, as many on every rank: dummies even them out. Every rank works
// out what the others have from the batch it holds too: no communication.
//
//   kFixed     samples in contiguous uneven shares, `micro_batch_size` of them at a time
//   kPacked    first fit decreasing: each rank packs its own share; balanced: bins of like size
//              over the whole batch, as many for every rank
//   kDynamic   each rank's own share, by length
//
// `samples_together` neighbors stay in one microbatch (pairs: 2): they divide micro_batch_size and
// the batch.
//
// Throws Error(kBadInput): a sequence longer, padding included, than the budget; Error(kRefused):
// samples that stay together in anything but kFixed, which would part them.
// Source: NeMo-RL dtensor_policy_worker.py, train: fixed microbatches, dynamic batching, sequence
// packing.
std::vector<Microbatch> deal_batches(const Batch& batch, int64_t dp_size, int64_t dp_rank,
                                     const BatchingOptions& options, const SequencePadding& padding,
                                     int64_t samples_together = 1);

}  // namespace shardproof
