// The microbatches of one dp rank: its share of the global batch, filled up with dummies so that
// every rank makes the same number of forward passes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "model/batch.h"
#include "sequence/packing.h"

namespace shardproof {

// In training the samples that the loss compares stay in one microbatch; in scoring samples are
// independent.
enum class Pass { kScoring, kTraining };

struct Microbatch {
  Batch batch;  // b samples of the global batch, [B, S]
  // [b, s] s = S padded at the end to seq_multiple, or as in batching.h; a packed row, like the
  // next two, is [1, T].
  at::Tensor input_ids;
  at::Tensor positions;   // [b, s] 0, 1, ...; in a packed row from the start of each sequence
  at::Tensor token_map;   // [b, s] sample * S + position; -1 in padding and dummies
  at::Tensor result_map;  // [b, S] sample * S + position, also in padding; -1 in dummies
  at::Tensor loss_mask;   // [b, S] float64; all 0 in a dummy
  at::Tensor scored;      // [b, S] bool: positions that have a logprob (not the first, not padding)
  std::optional<Pack> plan = {};  // of a packed row
};

// The parts of a microbatch other than the model's inputs. `part` has the samples of the global
// batch whose indices are `samples` [b] int64.
Microbatch microbatch_of(Batch part, const at::Tensor& samples, bool dummy);
// With the model's inputs: each sample in a row of its own, cut or padded to `row_length`.
Microbatch in_rows(Microbatch micro, int64_t row_length);

// `micro_batch_size` <= 0: one microbatch has the whole share. Runs of `samples_together` samples
// stay in one microbatch; that number must divide the batch and the microbatches. A dummy is a copy
// of the first microbatch with mask 0 (NeMo-RL dtensor_policy_worker.py, train: "dummy microbatches
// to even out DP ranks"). No communication.
std::vector<Microbatch> deal_microbatches(const Batch& batch, int64_t dp_size, int64_t dp_rank,
                                          int64_t micro_batch_size, int64_t seq_multiple,
                                          int64_t samples_together = 1);

}  // namespace shardproof
