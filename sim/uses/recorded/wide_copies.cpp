#include "sim/uses/recorded/wide_copies.h"

#include "sim/case/record/golden_record.h"

namespace shardproof::sim::recorded {

WideCopies::WideCopies(const RecordedRun& run) {
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.values.dtype() != Dtype::kFloat64) continue;
    ranks_[record_key(piece.phase, piece.step, piece.name)].insert(piece.rank);
  }
}

bool WideCopies::are_elsewhere(const RecordedPiece& piece) const {
  const Dtype dtype = piece.values.dtype();
  if (!is_floating(dtype) || dtype == Dtype::kFloat64 || piece.global_shape.empty()) return false;
  const auto found = ranks_.find(record_key(piece.phase, piece.step, piece.name));
  return found != ranks_.end() && !found->second.contains(piece.rank);
}

}  // namespace shardproof::sim::recorded
