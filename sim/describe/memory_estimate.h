// What one rank of a case holds, in bytes, from its sizes alone.
#pragma once

#include <cstdint>

#include "model/batch.h"
#include "model/config.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

// What a rank holds between two steps, and the gradients that its update takes: to the byte.
struct HeldEstimate {
  int64_t parameters = 0;  // leaves and masters, or shards
  int64_t gradients = 0;
  int64_t optimizer = 0;
};

// Of any rank; sharded parameters' last ranks hold less, or nothing. Throws what plan_lines throws.
HeldEstimate held_estimate(const CaseSpec& spec, const ModelConfig& config, int64_t rank);

struct MemoryEstimate {
  int64_t leaves = 0;       // what the forward uses, in the precision
  int64_t masters = 0;      // what the optimizer updates, where it is not the leaf itself
  int64_t gathered = 0;     // of sharded parameters: whole leaves at once, and those on their way
  int64_t optimizer = 0;    // its state, from the first update on
  int64_t activations = 0;  // at the start of the backward of the microbatch that takes most
  int64_t gradients = 0;    // in the wider type
  int64_t bucket = 0;       // of them, once more while they are averaged over ranks; of sharded
                            // parameters a layer's gradients, whole, and their sum on its way
  int64_t activations_left = 0;            // when the first layer's gradients are reduced (sharded)
  bool optimizer_before_backward = false;  // more than one step
  // The most at once: activations, gradients on their way and the update follow each other.
  int64_t total() const;
};

// Of rank 0 with the rows of the dp rank that has the longest: no rank holds more. `batch` decides
// what packed and dynamic microbatches look like. Counts what grows with the model and the batch,
// not tables, counters and temporary tensors of a single operation. bench/README.md says how far it
// is from what ranks measure. Throws what plan_lines and deal_batches throw.
MemoryEstimate estimate_memory(const CaseSpec& spec, const ModelConfig& config, const Batch& batch);

}  // namespace shardproof::sim
