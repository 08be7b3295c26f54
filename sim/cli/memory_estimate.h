// What one rank of a case holds, in bytes, from its sizes alone.
#pragma once

#include <cstdint>

#include "model/config.h"
#include "sim/scenario/case_spec.h"

namespace shardproof::sim {

struct MemoryEstimate {
  int64_t leaves = 0;       // what the forward uses, in the precision
  int64_t masters = 0;      // what the optimizer updates, where it is not the leaf itself
  int64_t gradients = 0;    // of the leaves
  int64_t reduced = 0;      // gradients in the wider type, as they are reduced and clipped
  int64_t optimizer = 0;    // its state
  int64_t activations = 0;  // kept for the backward of one microbatch: slot outputs, scores, logits
  int64_t total() const { return leaves + masters + gradients + reduced + optimizer + activations; }
};

// Of rank 0, which holds at least as much as any other. Throws what plan_lines throws (kRefused).
MemoryEstimate estimate_memory(const CaseSpec& spec, const ModelConfig& config);

}  // namespace shardproof::sim
