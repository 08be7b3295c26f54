// A copy of a parameter that something but the optimizer changed on one rank.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "sim/uses/recorded/clue.h"
#include "sim/uses/recorded/hashes.h"
#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {
namespace {

// A copy that is so many updates away from the reference's was not moved there by the optimizer.
constexpr double kManyUpdates = 4;
// Copies that so much of an update apart were not moved so by equal gradients.
constexpr double kPartOfUpdate = 0.1;
constexpr double kEqualGradients = 1e-3;  // of copies, relative to their largest element

struct Copy {
  const RecordedPiece* piece = nullptr;
  double distance = 0;  // of the largest element, from the reference's
  double moved = 0;     // the reference's, in this step
};

// A NaN is farther than any number.
double larger(double a, double b) {
  return std::isnan(b) ? std::numeric_limits<double>::infinity() : std::max(a, b);
}

double distance_from(const RecordedPiece& piece, const GoldenTensor& golden) {
  double largest = 0;
  const std::vector<double> values = values_as<double>(piece.values);
  const double* expected = golden.value.data<double>();
  plan_of(piece).for_each_run([&](int64_t local, int64_t global, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      largest = larger(largest, std::fabs(values[local + i] - expected[global + i]));
    }
  });
  return largest;
}

double apart(const RecordedPiece& a, const RecordedPiece& b) {
  const std::vector<double> of_a = values_as<double>(a.values), of_b = values_as<double>(b.values);
  if (of_a.size() != of_b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (size_t i = 0; i < of_a.size(); ++i) largest = larger(largest, std::fabs(of_a[i] - of_b[i]));
  return largest;
}

const RecordedPiece* gradient_of(const RecordedRun& run, const RecordedPiece& parameter) {
  const std::string name =
      observed_name(ObservationKind::kGradient, parameter_of(parameter.kind, parameter.name));
  const auto found = std::ranges::find_if(run.pieces, [&](const RecordedPiece& piece) {
    return piece.kind == ObservationKind::kGradient && piece.step == parameter.step &&
           piece.rank == parameter.rank && piece.name == name && piece.place == parameter.place;
  });
  return found == run.pieces.end() ? nullptr : &*found;
}

// Of two copies with a gradient: whether it is the same one; unset where one has none, or zeros.
std::optional<bool> has_gradient_of(const RecordedRun& run, const Copy& one, const Copy& other) {
  const RecordedPiece* a = gradient_of(run, *one.piece);
  const RecordedPiece* b = gradient_of(run, *other.piece);
  if (!a || !b) return std::nullopt;
  double size = 0;
  for (const double value : values_as<double>(a->values)) size = std::max(size, std::fabs(value));
  if (size == 0) return std::nullopt;
  return apart(*a, *b) <= kEqualGradients * size;  // false for NaN
}

}  // namespace

std::string changed_copy(const RecordedRun& run, const Reference& reference, int64_t step) {
  std::map<CopyKey, std::vector<Copy>> groups;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.step != step || piece.kind != ObservationKind::kParameter) continue;
    const GoldenTensor* now = reference.record.find(Phase::kStep, step, piece.name);
    const GoldenTensor* before = reference.record.find(Phase::kStep, step - 1, piece.name);
    if (!now || !before || !now->value.holds<double>() || !before->value.holds<double>()) continue;
    if (now->value.sizes() != piece.global_shape || before->value.sizes() != piece.global_shape)
      continue;
    groups[copy_key(run, piece)].push_back(
        {&piece, distance_from(piece, *now), distance_between(now->value, before->value).largest});
  }
  Copy worst;
  double most = 0;
  int64_t peer = -1;
  bool is_near = false;
  for (const auto& [key, copies] : groups) {
    const auto by_distance = [](const Copy& a, const Copy& b) { return a.distance < b.distance; };
    const auto [near, far] = std::minmax_element(copies.begin(), copies.end(), by_distance);
    if (near == far) continue;
    const double share = far->distance / far->moved;
    const bool is_far = share > kManyUpdates && !(near->distance > kManyUpdates * near->moved) &&
                        has_gradient_of(run, *near, *far).value_or(true);
    const bool differs = !is_far && apart(*near->piece, *far->piece) > kPartOfUpdate * far->moved &&
                         has_gradient_of(run, *near, *far).value_or(false);
    if (!(is_far || differs) || share <= most) continue;
    most = share;
    worst = *far;
    peer = near->piece->rank;
    is_near = differs;
  }
  if (!worst.piece) return "";
  return fmt::format(
      "the copy of {} on rank {} is not that of rank {} after this step{}: it is {:.2g} from the "
      "reference's, which moved by {:.2g} in this step; it was changed on that rank alone",
      parameter_of(worst.piece->kind, worst.piece->name), worst.piece->rank, peer,
      is_near ? ", and both had the same gradient" : "", worst.distance, worst.moved);
}

}  // namespace shardproof::sim::recorded
