// Which sequences share a microbatch: bin packing and dynamic batching. Arithmetic only.
//
//   lengths 7 5 4 3 1, budget 10
//   first fit decreasing   {7 3} {5 4 1}
//   balanced, 2 bins       {7 3} {5 4 1}
//   dynamic batches        {1 3 4} -> 3 rows of 4 = 12 is too much: {1 3} {4 5} {7}
#pragma once

#include <cstdint>
#include <vector>

namespace shardproof {

// Indices of sequences, by bin. Every sequence is in one bin. Indices ascend within a bin unless
// the function says otherwise.
using Bins = std::vector<std::vector<int64_t>>;

// Throws Error(kBadInput) for a budget below 1, and for a sequence above it, with its index.
void check_token_budget(const std::vector<int64_t>& lengths, int64_t token_budget);

// Puts sequences, longest first, into the first bin that has room (at most 11/9 of the fewest bins,
// plus 1). `lengths` include padding. Throws Error(kBadInput) without sequences ("an empty batch"),
// for a budget below 1, and for a sequence above it.
// Source: NeMo-RL dtensor_policy_worker.py, sequence packing; Johnson 1973.
Bins pack_first_fit_decreasing(const std::vector<int64_t>& lengths, int64_t token_budget);

// `num_bins` bins with similar sums: sequences, longest first, go into the lightest bin, so that
// ranks with equally many bins have similar work. Some are empty when there are more bins than
// sequences. Throws Error(kBadInput) without sequences, and for num_bins below 1.
Bins pack_balanced(const std::vector<int64_t>& lengths, int64_t num_bins);

// The balanced bins of the smallest multiple of `bin_multiple` bins that keeps all within the
// budget. Throws as pack_first_fit_decreasing does.
Bins pack_balanced_within(const std::vector<int64_t>& lengths, int64_t token_budget,
                          int64_t bin_multiple);

// Batches of padded rows, shortest first: each takes as many sequences as keep rows * (the longest,
// rounded up to `length_round`) within the budget. Lengths ascend within a batch. Throws
// Error(kBadInput) without sequences, for a budget or rounding below 1, and for a rounded length
// above the budget.
// Source: NeMo-RL dtensor_policy_worker.py, dynamic batching with sequence_length_round.
Bins dynamic_batches(const std::vector<int64_t>& lengths, int64_t token_budget,
                     int64_t length_round);

}  // namespace shardproof
