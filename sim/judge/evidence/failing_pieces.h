// The pieces of failed tensors that a rank's report carries for the explanation.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "sim/judge/diff/result_row.h"

namespace shardproof::sim::judge {

struct DiffTask;

// The values of both sides, with what `row` says of them.
Piece make_piece(const ResultRow& row, const DiffTask& task);

// Keeps the pieces of the earliest tensors in the golden's order.
class FailingPieces {
 public:
  static constexpr size_t kTensors = 3;
  static constexpr size_t kBytes = 16 << 20;  // of all pieces together

  // Whether keep() would keep a piece of the tensor at `position`, if there is room for its bytes.
  bool wants(const GoldenPosition& position) const;
  void keep(Piece piece);
  std::vector<Piece> take() { return std::move(pieces_); }

 private:
  std::vector<Piece> pieces_;
  std::optional<GoldenPosition> too_large_;  // the first position that was given up for its bytes
};

}  // namespace shardproof::sim::judge
