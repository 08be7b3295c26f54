// What ranks that hold parts of one sequence do wrong at the edges of these parts.
#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <set>

#include "sim/uses/recorded/clue.h"

namespace shardproof::sim::recorded {
namespace {

constexpr double kRoundingOfLogprob = 1e-6;  // of a logprob, which is about 1

// At which indices along `dim` a piece is wrong.
std::set<int64_t> wrong_along(const Gradient& piece, size_t dim) {
  std::set<int64_t> wrong;
  const std::vector<int64_t>& shape = piece.piece->shape;
  int64_t inner = 1;
  for (size_t d = dim + 1; d < shape.size(); ++d) inner *= shape[d];
  for (size_t i = 0; i < piece.actual.size(); ++i) {
    const double error = std::fabs(piece.actual[i] - piece.expected[i]);
    if (!(error <= kRoundingOfLogprob)) wrong.insert(static_cast<int64_t>(i) / inner % shape[dim]);
  }
  return wrong;
}

// Whether all wrong elements are at the last index of their pieces along `dim`; false where all are
// at the first. Unset for others, and unless all pieces that have a neighbour there are wrong.
std::optional<bool> wrong_edge(const std::vector<Gradient>& pieces, size_t dim) {
  std::optional<bool> is_last;
  std::vector<const Gradient*> right;
  bool has_neighbour = false;
  const auto meets_another = [&](const Gradient& one, bool at_last) {
    const int64_t begin = one.piece->place.offset[dim], end = begin + one.piece->shape[dim];
    return at_last ? end < one.piece->global_shape[dim] : begin > 0;
  };
  for (const Gradient& one : pieces) {
    const RecordedPiece& piece = *one.piece;
    if (piece.place.kind != Place::Kind::kBox || piece.shape.size() <= dim) return std::nullopt;
    const int64_t last = piece.shape[dim] - 1;
    if (last < 1) return std::nullopt;
    const std::set<int64_t> wrong = wrong_along(one, dim);
    if (wrong.empty()) right.push_back(&one);
    for (const int64_t index : wrong) {
      if ((index != 0 && index != last) || is_last.value_or(index == last) != (index == last)) {
        return std::nullopt;
      }
      is_last = index == last;
      has_neighbour = has_neighbour || meets_another(one, *is_last);
    }
  }
  if (!has_neighbour) return std::nullopt;
  for (const Gradient* one : right) {
    if (meets_another(*one, *is_last)) return std::nullopt;
  }
  return is_last;
}

}  // namespace

std::string clue_of_edges(const RecordedRun& run, const Reference& reference,
                          const judge::Divergence& found) {
  if (found.worst.kind != ObservationKind::kLogprobs) return "";
  const std::vector<Gradient> pieces =
      pieces_beside(run, reference, found.step,
                    [&](const RecordedPiece& piece) { return piece.name == found.tensor; });
  for (size_t dim = 1; dim < found.worst.global_shape.size(); ++dim) {
    const std::optional<bool> is_last = wrong_edge(pieces, dim);
    if (!is_last) continue;
    return fmt::format(
        "the labels were shifted after the sequence was cut: only the {0} position along dim {1} "
        "of a rank's part is wrong, and its label is the {2} token of the part {3}; shift them "
        "before the cut",
        *is_last ? "last" : "first", dim, *is_last ? "first" : "last",
        *is_last ? "after it" : "before it");
  }
  return "";
}

}  // namespace shardproof::sim::recorded
