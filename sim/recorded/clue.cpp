#include "sim/recorded/clue.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "sim/recorded/placement.h"

namespace shardproof::sim {
namespace {

constexpr std::string_view kGradient = "grad.";
constexpr double kRounding = 1e-9;  // of the tensor's largest value, in float64
constexpr int64_t kFewestRows = 2;

struct Gradient {
  const RecordedPiece* piece;
  const GoldenTensor* golden;
  std::vector<double> actual, expected;  // of the piece's elements

  double rounding() const { return kRounding * golden->scale; }
};

// The gradients of the step that are whole on their ranks, in float64.
std::vector<Gradient> gradients_of(const RecordedRun& run, const Reference& reference,
                                   int64_t step) {
  std::vector<Gradient> found;
  for (const RecordedPiece& piece : run.pieces) {
    if (piece.step != step || !piece.name.starts_with(kGradient)) continue;
    const GoldenTensor* golden = reference.record.find(piece.phase, step, piece.name);
    if (!golden || golden->value.sizes() != piece.global_shape || !piece.partial_axes.empty() ||
        !piece.values.holds<double>() || !golden->value.holds<double>()) {
      continue;
    }
    Gradient one{&piece, golden, {}, {}};
    const double* actual = piece.values.data<double>();
    const double* expected = golden->value.data<double>();
    plan_of(piece).for_each_run([&](int64_t local, int64_t global, int64_t length) {
      one.actual.insert(one.actual.end(), actual + local, actual + local + length);
      one.expected.insert(one.expected.end(), expected + global, expected + global + length);
    });
    found.push_back(std::move(one));
  }
  return found;
}

bool is_right(const std::vector<double>& actual, const Gradient& one) {
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!(std::abs(actual[i] - one.expected[i]) <= one.rounding())) return false;
  }
  return true;
}

// Whether all ranks hold addends of this part, whose sum is the reference.
bool holds_addends(const std::vector<const Gradient*>& peers) {
  std::vector<double> sum(peers.front()->actual.size());
  for (const Gradient* peer : peers) {
    if (peer->actual.size() != sum.size() || is_right(peer->actual, *peer)) return false;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += peer->actual[i];
  }
  return is_right(sum, *peers.front());
}

// Names the first such gradient in the order in which they were computed.
std::string missing_sum(const RecordedRun& run, const std::vector<Gradient>& gradients) {
  int64_t first = std::numeric_limits<int64_t>::max();
  std::string text;
  for (const MeshAxis& axis : run.mesh.axes()) {
    if (axis.size == 1) continue;
    using Key = std::tuple<std::string, Place, std::vector<int64_t>, int64_t>;
    std::map<Key, std::vector<const Gradient*>> groups;
    for (const Gradient& one : gradients) {
      const RecordedPiece& piece = *one.piece;
      groups[{piece.name, piece.place, piece.shape,
              run.mesh.peers_along(axis.name, piece.rank).front()}]
          .push_back(&one);
    }
    for (const auto& [key, peers] : groups) {
      const RecordedPiece& piece = *peers.front()->piece;
      const int64_t order = piece.order < 0 ? first - 1 : piece.order;
      if (static_cast<int64_t>(peers.size()) != axis.size || order >= first) continue;
      if (!holds_addends(peers)) continue;
      first = order;
      const IndexPlan plan = plan_of(piece);
      text = fmt::format(
          "the sum over {} is missing where {}{} gets its gradient: the sum of the ranks' values "
          "is the reference there",
          axis.name, piece.name.substr(kGradient.size()),
          plan.layout.empty() ? "" : " (" + plan.layout + ")");
    }
  }
  return text;
}

// Of each row of a gradient, whether any rank, and the reference, has a value other than zero.
struct NotZero {
  std::vector<bool> here, expected;
};

std::string empty_rows(const std::vector<Gradient>& gradients) {
  std::map<std::string, NotZero> tensors;
  for (const Gradient& one : gradients) {
    const std::vector<int64_t>& shape = one.piece->global_shape;
    if (shape.size() != 2 || shape[0] < 2) continue;
    NotZero& rows = tensors[one.piece->name];
    rows.here.resize(static_cast<size_t>(shape[0]));
    rows.expected.resize(rows.here.size());
    size_t at = 0;
    plan_of(*one.piece).for_each_run([&](int64_t, int64_t global, int64_t length) {
      for (int64_t i = global; i < global + length; ++i, ++at) {
        const auto row = static_cast<size_t>(i / shape[1]);
        if (one.actual[at] != 0) rows.here[row] = true;
        if (one.expected[at] != 0) rows.expected[row] = true;
      }
    });
  }
  for (const auto& [name, rows] : tensors) {
    int64_t due = 0, empty = 0;
    for (size_t row = 0; row < rows.here.size(); ++row) {
      due += rows.expected[row];
      empty += rows.expected[row] && !rows.here[row];
    }
    if (empty < kFewestRows || empty == due) continue;
    return fmt::format(
        "a part of the batch does not count, such as a microbatch or the rows of a rank: {} of {} "
        "rows of {} are zero here and are not in the reference",
        empty, due, name);
  }
  return "";
}

// A scalar that the ranks of an axis should have computed equally.
std::string unequal_copies(const RecordedRun& run, const Divergence& found) {
  std::map<int64_t, const RecordedPiece*> by_rank;
  for (const RecordedPiece& piece : run.pieces) {
    const bool same = piece.name == found.tensor && piece.step == found.step;
    if (same && piece.global_shape.empty() && piece.values.holds<double>()) {
      by_rank.emplace(piece.rank, &piece);
    }
  }
  for (const MeshAxis& axis : run.mesh.axes()) {
    for (const auto& [rank, piece] : by_rank) {
      const auto& addends = piece->partial_axes;
      if (std::find(addends.begin(), addends.end(), axis.name) != addends.end()) continue;
      for (const int64_t peer : run.mesh.peers_along(axis.name, rank)) {
        const auto other = by_rank.find(peer);
        if (other == by_rank.end()) continue;
        const double here = *piece->values.data<double>();
        const double there = *other->second->values.data<double>();
        if (here == there) continue;
        return fmt::format(
            "the ranks of {} do not agree ({:.8g} on rank {}, {:.8g} on rank {}): each computes it "
            "from its own part of a tensor, or from another batch",
            axis.name, here, rank, there, peer);
      }
    }
  }
  return "";
}

}  // namespace

void add_clue(const RecordedRun& run, const Reference& reference, Divergence& found) {
  if (found.kind != ResultKind::kValues || found.step == 0) return;
  const bool is_scalar = found.phase == Phase::kForward && found.worst.global_shape.empty();
  std::string clue = is_scalar ? unequal_copies(run, found) : "";
  if (clue.empty() && found.likely.empty()) {
    const std::vector<Gradient> gradients = gradients_of(run, reference, found.step);
    clue = missing_sum(run, gradients);
    if (clue.empty()) clue = empty_rows(gradients);
  }
  if (!clue.empty()) found.likely = clue;
}

}  // namespace shardproof::sim
