// Which sequences go into one microbatch together: bin packing and dynamic batching. Plain
// arithmetic.
//
//   lengths 7 5 4 3 1, budget 10
//   first fit decreasing   {7 3} {5 4 1}
//   balanced, 2 bins       {7 3} {5 4 1}
//   dynamic batches        {1 3 4} -> 3 rows of 4 = 12 is too much: {1 3} {4 5} {7}
#pragma once

#include <cstdint>
#include <vector>

namespace shardproof {

// Indices of sequences, by bin. Every sequence is in one bin; within a bin they ascend, unless
// said.
using Bins = std::vector<std::vector<int64_t>>;

// Throws Error(kBadInput): a budget below 1, or a sequence above it, by its index.
void check_token_budget(const std::vector<int64_t>& lengths, int64_t token_budget);

// Longest first, each into the first bin that has room (at most 11/9 of the fewest bins, plus 1).
// `lengths` as they count in a bin, padding included.
// Throws Error(kBadInput): no sequences ("an empty batch"), a budget below 1, a sequence above it.
// Source: NeMo-RL dtensor_policy_worker.py, sequence packing; Johnson 1973.
Bins pack_first_fit_decreasing(const std::vector<int64_t>& lengths, int64_t token_budget);

// `num_bins` bins of like sums: longest first, each into the lightest bin, so that ranks that take
// as many bins each have like work. More bins than sequences leave some empty.
// Throws Error(kBadInput): no sequences, num_bins below 1, and, with a budget (-1: none), a bin
// above it.
Bins pack_balanced(const std::vector<int64_t>& lengths, int64_t num_bins,
                   int64_t token_budget = -1);

// The balanced bins of the smallest multiple of `bin_multiple` bins that keeps all within the
// budget. Throws as pack_first_fit_decreasing.
Bins pack_balanced_within(const std::vector<int64_t>& lengths, int64_t token_budget,
                          int64_t bin_multiple);

// Batches of padded rows: shortest first, as many as keep rows * (the longest, rounded up to
// `length_round`) within the budget. Within a batch they ascend by length.
// Throws Error(kBadInput): no sequences, a budget or rounding below 1, a rounded length above it.
// Source: NeMo-RL dtensor_policy_worker.py, dynamic batching with sequence_length_round.
Bins dynamic_batches(const std::vector<int64_t>& lengths, int64_t token_budget,
                     int64_t length_round);

}  // namespace shardproof
