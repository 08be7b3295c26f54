#include "sim/uses/recorded/copies.h"

#include "sim/case/record/golden_record.h"

namespace shardproof::sim::recorded {

CopyKey copy_key(const RecordedRun& run, const RecordedPiece& piece) {
  std::vector<int64_t> addend;
  for (const std::string& axis : piece.partial_axes) {
    addend.push_back(run.mesh.coordinate(axis, piece.rank));
  }
  return {record_key(piece.phase, piece.step, piece.name), piece.microbatch, piece.place,
          piece.shape, addend};
}

std::map<CopyKey, std::vector<int64_t>> copies_of(const RecordedRun& run) {
  std::map<CopyKey, std::vector<int64_t>> copies;
  for (const RecordedPiece& piece : run.pieces) {
    std::vector<int64_t>& ranks = copies[copy_key(run, piece)];
    if (ranks.empty() || ranks.back() != piece.rank) ranks.push_back(piece.rank);
  }
  return copies;
}

}  // namespace shardproof::sim::recorded
