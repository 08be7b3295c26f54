#include "sim/judge/evidence/failing_pieces.h"

#include <cmath>
#include <set>

#include "sim/judge/diff/tensor_diff.h"

namespace shardproof::sim::judge {

Piece make_piece(const ResultRow& row, const DiffTask& task) {
  Piece piece{.kind = row.kind,
              .name = row.name,
              .phase = row.phase,
              .step = row.step,
              .microbatch = row.microbatch,
              .rank = row.rank,
              .order = row.order,
              .partial = row.partial,
              .partial_axes = row.partial_axes,
              .global_shape = task.plan.golden_shape(),
              .dims = task.plan.dims,
              .strides = task.plan.strides};
  piece.allowance = std::fabs(task.scale) * task.allowance;
  piece.drawn = task.plan.drawn;
  copy_both(task, piece.actual, piece.golden);
  return piece;
}

namespace {

size_t bytes_of(const Piece& piece) {
  return (piece.actual.size() + piece.golden.size()) * sizeof(double);
}

GoldenPosition position_of(const Piece& piece) {
  return golden_position(piece.step, piece.phase, piece.order);
}

}  // namespace

bool FailingPieces::wants(const GoldenPosition& position) const {
  if (too_large_ && position >= *too_large_) return false;
  std::set<GoldenPosition> kept;
  for (const Piece& piece : pieces_) kept.insert(position_of(piece));
  return kept.size() < kTensors || kept.count(position) != 0 || position < *kept.rbegin();
}

void FailingPieces::keep(Piece piece) {
  pieces_.push_back(std::move(piece));
  while (true) {
    std::set<GoldenPosition> positions;
    size_t bytes = 0;
    for (const Piece& one : pieces_) {
      positions.insert(position_of(one));
      bytes += bytes_of(one);
    }
    if (positions.empty() || (positions.size() <= kTensors && bytes <= kBytes)) return;
    const GoldenPosition latest = *positions.rbegin();
    if (bytes > kBytes) too_large_ = latest;
    std::erase_if(pieces_, [&](const Piece& one) { return position_of(one) == latest; });
  }
}

}  // namespace shardproof::sim::judge
