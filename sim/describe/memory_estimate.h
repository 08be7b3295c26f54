// Bytes that one rank of a case holds, from its sizes alone.
#pragma once

#include <cstdint>

#include "model/batch.h"
#include "model/config.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

// The exact bytes that a rank holds between two steps, and the gradients that its update uses.
struct HeldEstimate {
  int64_t parameters = 0;  // leaves and masters, or shards
  int64_t gradients = 0;
  int64_t optimizer = 0;
};

// For any rank; with sharded parameters the last ranks may hold less. Throws as plan_lines does.
HeldEstimate held_estimate(const CaseSpec& spec, const ModelConfig& config, int64_t rank);

struct MemoryEstimate {
  int64_t leaves = 0;     // used by the forward, in the precision
  int64_t masters = 0;    // updated by the optimizer, unless they are the leaves
  int64_t gathered = 0;   // of sharded parameters: whole leaves held at once, and those in transit
  int64_t optimizer = 0;  // state after the first update
  int64_t activations = 0;  // at the start of the backward of the largest microbatch
  int64_t gradients = 0;    // in the wider type
  // Copies of gradients while ranks average them; for sharded parameters the whole gradients of a
  // layer, and their sum in transit.
  int64_t bucket = 0;
  int64_t activations_left = 0;            // when the first layer's gradients are reduced (sharded)
  bool optimizer_before_backward = false;  // more than one step
  // The most bytes at once: activations, gradients in transit and the update follow each other.
  int64_t total() const;
};

// Estimates rank 0 with the rows of the dp rank that has the longest; no rank holds more. `batch`
// determines packed and dynamic microbatches. The estimate counts tensors that grow with the model
// and the batch, not tables, counters and temporary tensors of a single op. bench/README.md
// compares it with measurements. Throws as plan_lines and deal_batches do.
MemoryEstimate estimate_memory(const CaseSpec& spec, const ModelConfig& config, const Batch& batch);
// The same with the bytes of activations of a microbatch as given.
MemoryEstimate estimate_memory(const CaseSpec& spec, const ModelConfig& config,
                               int64_t activations);

}  // namespace shardproof::sim
