// The gradients of one step of a recorded run, beside those of the reference.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/judge/diff/result_row.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

struct Gradient {
  const RecordedPiece* piece;
  const GoldenTensor* golden;
  std::vector<double> actual, expected;  // of the piece's elements

  bool is_right() const { return is_right(actual); }
  // Whether these values in the place of its own would be the reference.
  bool is_right(const std::vector<double>& values) const;
};

// The pieces of one step that `is_wanted`, with the same rule as gradients_of().
std::vector<Gradient> pieces_beside(const RecordedRun& run, const Reference& reference,
                                    int64_t step,
                                    const std::function<bool(const RecordedPiece&)>& is_wanted);

// Those in float64 of which no piece is an addend, by rank, in the order observed.
std::vector<Gradient> gradients_of(const RecordedRun& run, const Reference& reference,
                                   int64_t step);

bool has_gradients(const RecordedRun& run);
// Whether a parameter is another one after a step than before it.
bool has_moved(const RecordedRun& run);
// The ranks that recorded parameters and no gradient, where others did, for the note; "" for none.
// Ranks may leave gradients to others (ZeRO), so this is not a finding.
std::string without_gradients(const RecordedRun& run);
// A note where the golden took its batch from shardproof.batch and this run, with data-parallel
// axes, did not: ranks that all compute the whole batch match as well. "" elsewhere.
std::string uncut_batch(const RecordedRun& run, const RecordedRun& golden);

// What the wrong gradients of a step have in common.

// "3 of 30 gradients of step 1 are wrong: all with 'norm' in their name, and no others"; with no
// common part their names, at most four; "" when at most one is wrong.
std::string other_wrong_gradients(const std::vector<judge::RankReport>& reports, int64_t step);

}  // namespace shardproof::sim::recorded
