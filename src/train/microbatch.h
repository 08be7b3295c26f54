// The microbatches of one dp rank: its share of the global batch, evened out with dummies so that
// every rank makes the same number of forward passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "model/batch.h"
#include "sequence/packing.h"

namespace shardproof {

struct Microbatch {
  Batch batch;            // b of the global batch's samples, [b, S]
  at::Tensor input_ids;   // [b, s] s = S padded at the end to the multiple that was asked for, or
                          // what batching.h says; of a packed row [1, T], as the next two
  at::Tensor positions;   // [b, s] 0, 1, ...; in a packed row from the start of each sequence
  at::Tensor token_map;   // [b, s] sample * S + position; -1 in padding and dummies
  at::Tensor result_map;  // [b, S] sample * S + position also in padding; -1 in dummies
  at::Tensor loss_mask;   // [b, S] float64; all 0 in a dummy
  at::Tensor scored;      // [b, S] bool: positions that have a logprob (not the first, not padding)
  std::optional<Pack> plan = {};  // of a packed row
};

// `micro_batch_size` <= 0: the whole share at once. Runs of `samples_together` samples, which
// divide the batch and the microbatches, are dealt as one. A dummy is a copy of the first whose
// mask is 0 (NeMo-RL dtensor_policy_worker.py, train: "dummy microbatches to even out DP ranks").
// Plain arithmetic, no communication.
std::vector<Microbatch> deal_microbatches(const Batch& batch, int64_t dp_size, int64_t dp_rank,
                                          int64_t micro_batch_size, int64_t seq_multiple,
                                          int64_t samples_together = 1);

}  // namespace shardproof
