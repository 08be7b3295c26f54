// Values of a step before: gradients that were not reset, and counters that were not updated.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "base/count_of.h"
#include "sim/judge/diff/evidence.h"
#include "sim/judge/diff/factor_sums.h"
#include "sim/uses/recorded/clue.h"

namespace shardproof::sim::recorded {
namespace {

constexpr double kLeastLeft = 1e-6;   // of the difference, what the factor may leave of it
constexpr int64_t kFewestLeft = 16;   // differing elements
constexpr double kLeastOther = 1e-9;  // of a gradient, in float64

// What the rank recorded of the same part of this gradient in another step; null for none.
const RecordedPiece* same_part(const RecordedRun& run, const RecordedPiece& piece, int64_t step) {
  for (const RecordedPiece& one : run.pieces) {
    if (one.rank == piece.rank && one.step == step && one.name == piece.name &&
        one.place == piece.place && one.shape == piece.shape && one.partial_axes.empty() &&
        one.values.holds<double>()) {
      return &one;
    }
  }
  return nullptr;
}

// Over the wrong gradients.
struct LeftOver {
  judge::FactorSums difference;  // from the reference, as a multiple of the step before
  judge::FactorSums reference;   // as a multiple of the step before

  // Where the step before is a multiple of the reference, a factor of this step says as much.
  bool is_another() const { return !reference.fits(std::sqrt(kLeastOther)); }
};

}  // namespace

std::string left_from_step_before(const RecordedRun& run, const Reference& reference,
                                  int64_t step) {
  if (step < 2) return "";
  std::map<std::string, LeftOver> tensors;  // a sum over other ranks makes another factor
  int64_t differing = 0;
  for (const Gradient& one : gradients_of(run, reference, step)) {
    if (one.is_right()) continue;
    const RecordedPiece* before = same_part(run, *one.piece, step - 1);
    if (before == nullptr) return "";
    LeftOver& sums = tensors[one.piece->name];
    const double* then = before->values.data<double>();
    for (size_t i = 0; i < one.actual.size(); ++i) {
      const double difference = one.actual[i] - one.expected[i];
      sums.difference.add(difference, then[i]);
      sums.reference.add(one.expected[i], then[i]);
      differing += difference != 0;
    }
  }
  if (differing < kFewestLeft) return "";
  double least = INFINITY, most = -INFINITY;
  for (const auto& [name, sums] : tensors) {
    const double factor = sums.difference.factor();
    if (!sums.difference.fits(kLeastLeft) || !sums.is_another() || !(factor > 0)) return "";
    least = std::min(least, factor);
    most = std::max(most, factor);
  }
  const bool is_one = most - least <= kLeastLeft * most;
  return fmt::format(
      "{} x the gradients of step {} are in those of step {}: they were not reset (zero_grad) "
      "between the steps{}",
      is_one ? fmt::format("{:.6g}", most) : fmt::format("{:.6g} to {:.6g}", least, most), step - 1,
      step,
      is_one && std::fabs(most - 1) <= kLeastLeft
          ? ""
          : "; a sum over ranks or a clip between them makes a factor other than 1");
}

bool explain_stale_number(const Reference& reference, judge::Divergence& found) {
  const judge::ResultRow& row = found.worst;
  if (row.kind != ObservationKind::kBuffer || found.step < 1 || row.count != 1 || row.partial)
    return false;
  const GoldenTensor* before = reference.record.find(row.phase, found.step - 1, row.name);
  if (!before || before->value.numel() != 1) return false;
  if (values_as<double>(before->value).front() != row.actual_value) return false;
  found.pattern =
      judge::text_of(judge::EqualsStep{.step = found.step - 1}) + " on " + ranks_text(found.ranks);
  found.likely.clear();
  return true;
}

}  // namespace shardproof::sim::recorded
