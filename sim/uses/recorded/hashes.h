// Compares the hashes of modules' outputs: those of ranks that hold the same output, and those of
// another run of the same layout.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "sim/judge/verdict/verdict.h"
#include "sim/uses/recorded/recorded_run.h"

namespace shardproof::sim::recorded {

struct HashJudgement {
  std::optional<judge::Divergence>
      divergence;    // the first output of which ranks hold unequal copies
  std::string note;  // what was compared; "" when the run has no hashes
};

// Ranks hold the same output when their places are known and equal. Where no place is known, they
// do when the reference has one rank, its output has the same shape but for dim 0, and the ranks
// have the same rows of the batch. Runs of equal meshes are also compared rank by rank, which
// decides nothing: equal bits are more than a right run must have.
HashJudgement judge_hashes(const RecordedRun& run, const RecordedRun& reference);

// Of runs of equal meshes: how many states of random generators are equal, and the first that is
// not; "" for other runs. Ranks may draw as they like, so this decides nothing either.
std::string compare_random_states(const RecordedRun& run, const RecordedRun& reference);

// Pieces that must be equal: of one tensor, part, microbatch and, for addends, of one addend.
using CopyKey = std::tuple<std::string, int64_t, Place, std::vector<int64_t>, std::vector<int64_t>>;

CopyKey copy_key(const RecordedRun& run, const RecordedPiece& piece);
// The ranks that hold each copy, ascending.
std::map<CopyKey, std::vector<int64_t>> copies_of(const RecordedRun& run);

}  // namespace shardproof::sim::recorded
