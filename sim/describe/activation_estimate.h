// What a rank makes of one microbatch and keeps for its backward, in bytes, from sizes alone.
#pragma once

#include <cstdint>
#include <vector>

#include "model/batch.h"
#include "model/config.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

// A microbatch as one rank works on it. A packed one is a single row of several sequences.
struct MicrobatchRows {
  int64_t count = 0;    // rows
  int64_t length = 0;   // positions of a row, padding included
  int64_t held = 0;     // of them, what this rank has: length over cp and ulysses
  int64_t longest = 0;  // tokens of the longest sequence
};

// What the rank goes through, one after another. Throws as deal_batches.
std::vector<MicrobatchRows> microbatch_rows(const CaseSpec& spec, const Batch& batch, int64_t rank);

// The most at once while the microbatch is trained on, at the start of its backward.
int64_t training_bytes(const CaseSpec& spec, const ModelConfig& config, const MicrobatchRows& rows);
// The same while it is scored: nothing is kept.
int64_t scoring_bytes(const CaseSpec& spec, const ModelConfig& config, const MicrobatchRows& rows);

}  // namespace shardproof::sim
