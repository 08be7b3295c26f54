// Bytes that a rank makes of one microbatch and keeps for its backward, from sizes alone.
#pragma once

#include <cstdint>
#include <vector>

#include "model/batch.h"
#include "model/config.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

// A microbatch on one rank. A packed one is a single row of several sequences.
struct MicrobatchRows {
  int64_t count = 0;    // rows
  int64_t length = 0;   // positions of a row, including padding
  int64_t held = 0;     // positions that this rank holds: length over cp and ulysses
  int64_t longest = 0;  // tokens of the longest sequence
};

// The microbatches of the rank, in order. Throws as deal_batches does.
std::vector<MicrobatchRows> microbatch_rows(const CaseSpec& spec, const Batch& batch, int64_t rank);

// The most bytes at once in training, at the start of the backward.
int64_t training_bytes(const CaseSpec& spec, const ModelConfig& config, const MicrobatchRows& rows);
// The most bytes at once in scoring, which keeps nothing.
int64_t scoring_bytes(const CaseSpec& spec, const ModelConfig& config, const MicrobatchRows& rows);

}  // namespace shardproof::sim
