// An update of gradients that were not clipped, where the reference's were.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sim/uses/recorded/clue.h"
#include "sim/uses/recorded/gradients.h"

namespace shardproof::sim::recorded {
namespace {

constexpr double kNearOne = 1e-4;  // a clip that changed next to nothing
constexpr double kSameUpdate = 1e-3;

}  // namespace

double clip_coefficient(const RecordedRun& run, const Reference& reference, int64_t step) {
  const auto own = std::ranges::find_if(run.pieces, [&](const RecordedPiece& piece) {
    return piece.step == step && piece.name == kClipCoefficient && piece.values.holds<double>();
  });
  const GoldenTensor* due = reference.record.find(Phase::kStep, step, kClipCoefficient);
  const bool is_due = due && due->value.holds<double>();
  const double coefficient = own != run.pieces.end() ? *own->values.data<double>()
                             : is_due                ? *due->value.data<double>()
                                                     : 1;
  return coefficient > 0 && coefficient < 1 - kNearOne ? coefficient : 1;
}

std::string unclipped_update(const RecordedRun& run, const Reference& reference,
                             const judge::Divergence& found) {
  const double coefficient = clip_coefficient(run, reference, found.step);
  if (found.worst.kind != ObservationKind::kParameter || coefficient == 1) return "";
  const auto of_step = [&](int64_t step) {
    return pieces_beside(run, reference, step, [&](const RecordedPiece& piece) {
      return piece.name == found.tensor && std::ranges::count(found.ranks, piece.rank) > 0;
    });
  };
  const std::vector<Gradient> now = of_step(found.step), before = of_step(found.step - 1);
  double product = 0, square = 0, own = 0;
  for (size_t i = 0; i < std::min(now.size(), before.size()); ++i) {
    if (now[i].actual.size() != before[i].actual.size()) return "";
    for (size_t k = 0; k < now[i].actual.size(); ++k) {
      const double moved = now[i].actual[k] - before[i].actual[k];
      const double due = now[i].expected[k] - before[i].expected[k];
      product += moved * due;
      square += due * due;
      own += moved * moved;
    }
  }
  if (!(square > 0)) return "";
  const double factor = product / square, rest = own - factor * product;
  if (!(std::fabs(factor * coefficient - 1) <= kSameUpdate) || rest > kSameUpdate * own) return "";
  return fmt::format(
      "its update is the reference's over {:.6g}, the clip coefficient of step {}: the gradients "
      "were not clipped",
      coefficient, found.step);
}

}  // namespace shardproof::sim::recorded
