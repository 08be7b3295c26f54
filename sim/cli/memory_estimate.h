// What one rank of a case holds, in bytes, from its sizes alone.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "sim/scenario/case_spec.h"

namespace shardproof::sim {

struct MemoryEstimate {
  int64_t leaves = 0;       // what the forward uses, in the precision
  int64_t masters = 0;      // what the optimizer updates, where it is not the leaf itself
  int64_t optimizer = 0;    // its state, from the first update on
  int64_t activations = 0;  // at the start of the backward of one microbatch
  int64_t gradients = 0;    // in the wider type
  int64_t bucket = 0;       // of them, once more while they are averaged over dp
  bool optimizer_before_backward = false;  // more than one step
  // The most at once: activations, gradients on their way and the update follow each other.
  int64_t total() const;
};

// Of rank 0, which holds at least as much as any other. Counts what grows with the model and the
// batch, not tables, counters and temporary tensors of a single operation. bench/README.md says how
// far it is from what ranks measure. Throws what plan_lines throws (kRefused).
MemoryEstimate estimate_memory(const CaseSpec& spec, const ModelConfig& config);

}  // namespace shardproof::sim
