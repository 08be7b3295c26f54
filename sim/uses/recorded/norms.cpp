// The cause of a wrong norm of the gradients, and of gradients that each rank clipped by its own.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "sim/uses/recorded/clue.h"
#include "sim/uses/recorded/gradients.h"

namespace shardproof::sim::recorded {
namespace {

constexpr double kSameSquare = 1e-9;
constexpr double kSameClip = 1e-5;  // clipping adds 1e-6 to the norm

bool are_same(double a, double b, double slack) { return std::fabs(a - b) <= slack * std::fabs(b); }

double square_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

// Sums of squares of the reference's gradients. Whether they are clipped does not matter: only
// quotients are used.
struct Squares {
  double whole = 0;
  double magnitudes = 0, largest = 0;  // of all elements: the norms of order 1 and infinity
  std::map<int64_t, double> of_rank;   // of the pieces that the rank holds

  double share(int64_t rank) const {
    const auto found = of_rank.find(rank);
    return found == of_rank.end() ? 0 : found->second / whole;
  }
  bool are_whole(int64_t rank) const { return share(rank) > 1 - kSameSquare; }
};

Squares squares_of(const std::vector<Gradient>& gradients) {
  Squares squares;
  std::set<const GoldenTensor*> seen;
  for (const Gradient& one : gradients) {
    squares.of_rank[one.piece->rank] += square_of(one.expected);
    if (!seen.insert(one.golden).second) continue;
    const double* values = one.golden->value.data<double>();
    squares.whole += square_of({values, values + one.golden->value.numel()});
    for (int64_t i = 0; i < one.golden->value.numel(); ++i) {
      squares.magnitudes += std::fabs(values[i]);
      squares.largest = std::max(squares.largest, std::fabs(values[i]));
    }
  }
  return squares;
}

// The norm on each rank over the reference's.
std::map<int64_t, double> norms_of(const RecordedRun& run, const judge::Divergence& found) {
  std::map<int64_t, double> norms;
  for (const RecordedPiece& piece : run.pieces) {
    const bool is_it = piece.name == found.tensor && piece.step == found.step;
    if (!is_it || !piece.global_shape.empty() || !piece.values.holds<double>()) continue;
    norms[piece.rank] = *piece.values.data<double>() / found.worst.golden_value;
  }
  return norms;
}

std::string own_norms(const Squares& squares, const std::map<int64_t, double>& norms) {
  bool is_part = false;
  for (const auto& [rank, norm] : norms) {
    if (!are_same(norm * norm, squares.share(rank), kSameSquare)) return "";
    is_part = is_part || !squares.are_whole(rank);
  }
  if (!is_part) return "";
  return "on each rank it is the norm of the gradients that this rank holds: the sum of the "
         "squares over the ranks is missing";
}

// The norms are of shares that no recorded piece shows, such as each rank's part of a flat buffer.
std::string shares_along_an_axis(const RecordedRun& run, const std::map<int64_t, double>& norms) {
  for (const MeshAxis& axis : run.mesh.axes()) {
    if (axis.size == 1) continue;
    bool differ = false;
    const bool fits = std::ranges::all_of(norms, [&](const auto& norm) {
      double sum = 0;
      for (const int64_t peer : run.mesh.peers_along(axis.name, norm.first)) {
        const auto found = norms.find(peer);
        if (found == norms.end()) return false;
        sum += found->second * found->second;
        differ = differ || !are_same(found->second, norm.second, kSameClip);
      }
      return are_same(sum, 1, kSameSquare);
    });
    if (!fits || !differ) continue;
    return fmt::format(
        "the squares of the ranks' norms add up over {} to that of the whole norm: each rank has "
        "the norm of a share of the gradients, and the sum of the squares over {} is missing",
        axis.name, axis.name);
  }
  return "";
}

// All ranks have the whole norm, and that of another order.
std::string other_order(const Squares& squares, const std::map<int64_t, double>& norms) {
  const double of_two = std::sqrt(squares.whole);
  const auto all_have = [&](double norm) {
    return std::ranges::all_of(
        norms, [&](const auto& one) { return are_same(one.second, norm / of_two, kSameClip); });
  };
  if (all_have(squares.largest)) {
    return "it is the largest magnitude of all gradients, the norm of order infinity, where that "
           "of "
           "order 2 is due";
  }
  if (!all_have(squares.magnitudes)) return "";
  return "it is the sum of the magnitudes of all gradients, the norm of order 1, where that of "
         "order 2 is due";
}

// Whether all ranks of an axis hold the same piece of a tensor.
std::map<const GoldenTensor*, bool> copies_along(const RecordedRun& run,
                                                 const std::vector<Gradient>& gradients,
                                                 const std::string& axis) {
  struct Held {
    std::set<Place> places;
    std::set<int64_t> ranks;
  };
  std::map<std::pair<const GoldenTensor*, int64_t>, Held> held;
  std::map<const GoldenTensor*, bool> copies;
  for (const Gradient& one : gradients) {
    const int64_t leader = run.mesh.peers_along(axis, one.piece->rank).front();
    held[{one.golden, leader}].places.insert(one.piece->place);
    held[{one.golden, leader}].ranks.insert(one.piece->rank);
  }
  for (const auto& [key, group] : held) {
    const auto at = copies.emplace(key.first, true).first;
    const bool on_all = std::ssize(group.ranks) == run.mesh.size(axis);
    at->second = at->second && on_all && group.places.size() == 1;
  }
  return copies;
}

std::string copies_counted(const RecordedRun& run, const std::vector<Gradient>& gradients,
                           const Squares& squares, const std::map<int64_t, double>& norms) {
  for (const MeshAxis& axis : run.mesh.axes()) {
    if (axis.size == 1) continue;
    double counted = 0;
    std::vector<std::string> copied;
    const auto copies = copies_along(run, gradients, axis.name);
    for (const auto& [tensor, is_copied] : copies) {
      const double* values = tensor->value.data<double>();
      const double square = square_of({values, values + tensor->value.numel()});
      counted += (is_copied ? static_cast<double>(axis.size) : 1.0) * square;
      if (is_copied) copied.push_back(parameter_of(tensor->kind, tensor->name));
    }
    if (copied.empty() || copied.size() == copies.size()) continue;
    const bool fits = std::ranges::all_of(norms, [&](const auto& norm) {
      return are_same(norm.second * norm.second, counted / squares.whole, kSameSquare);
    });
    if (!fits) continue;
    return fmt::format(
        "its square has the square of {}, which the ranks of {} hold as equal copies, {} times, "
        "and that of the tensors which are cut over {} once: copies count once for each rank",
        copied.size() == 1
            ? *std::ranges::min_element(copied)
            : fmt::format("{} and {} more", *std::ranges::min_element(copied), copied.size() - 1),
        axis.name, axis.size, axis.name);
  }
  return "";
}

// The rank's factor of this gradient; unset when it has none.
std::optional<double> factor_of(const Gradient& gradient) {
  double product = 0;
  for (size_t i = 0; i < gradient.actual.size(); ++i) {
    product += gradient.actual[i] * gradient.expected[i];
  }
  const double own = square_of(gradient.actual), golden = square_of(gradient.expected);
  if (!(golden > 0) || !(own > 0)) return std::nullopt;
  const double factor = product / golden;
  if (!(own - factor * product <= kSameSquare * own)) return std::nullopt;
  return factor;
}

// Each rank's factor times its own norm is the largest norm that is allowed.
std::string clipped_by_own_norm(const std::vector<Gradient>& gradients, const Squares& squares,
                                const std::string& name) {
  std::map<int64_t, double> clipped;  // the norm of each rank's gradients after its clipping
  bool differ = false;
  for (const Gradient& one : gradients) {
    if (one.piece->name != name || one.actual.empty()) continue;
    const std::optional<double> factor = factor_of(one);
    if (!factor) return "";
    clipped[one.piece->rank] = *factor * std::sqrt(squares.share(one.piece->rank));
    const double first = squares.share(clipped.begin()->first);
    differ = differ || !are_same(squares.share(one.piece->rank), first, kSameClip);
    if (!are_same(clipped[one.piece->rank], clipped.begin()->second, kSameClip)) return "";
  }
  if (!differ) return "";
  return "each rank clips by the norm of the gradients that it holds, where the norm of all ranks "
         "is due: the gradients of each rank have the same norm after it";
}

}  // namespace

std::string clue_of_norm(const RecordedRun& run, const Reference& reference,
                         const judge::Divergence& found) {
  const bool is_norm = found.worst.kind == ObservationKind::kGradNorm;
  if (!is_norm && found.worst.kind != ObservationKind::kGradient) return "";
  const std::vector<Gradient> gradients = gradients_of(run, reference, found.step);
  const Squares squares = squares_of(gradients);
  if (!(squares.whole > 0)) return "";
  if (!is_norm) return clipped_by_own_norm(gradients, squares, found.tensor);
  const std::map<int64_t, double> norms = norms_of(run, found);
  if (norms.empty()) return "";
  std::string clue = own_norms(squares, norms);
  if (clue.empty()) clue = copies_counted(run, gradients, squares, norms);
  if (clue.empty()) clue = shares_along_an_axis(run, norms);
  return clue.empty() ? other_order(squares, norms) : clue;
}

}  // namespace shardproof::sim::recorded
