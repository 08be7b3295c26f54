// What the rows of an embedding's gradient tell of the parts of the batch: a row has the gradient
// of the positions at which its token stands.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "sim/judge/diff/factor_sums.h"
#include "sim/uses/recorded/clue.h"
#include "sim/uses/recorded/placement.h"

namespace shardproof::sim::recorded {
namespace {

constexpr int64_t kFewestRows = 2;
constexpr int64_t kFewestColumns = 4;  // a row of fewer is a multiple by chance
constexpr size_t kMostParts = 8;
constexpr size_t kFewestThatFit = 3;
constexpr double kSame = 1e-7;  // relative distance of two factors, and of a row from a multiple

// A row on all ranks together, copies included.
struct Row {
  judge::FactorSums sums = {};
  int64_t columns = 0;
  std::set<const RecordedPiece*> pieces = {};

  bool is_empty() const { return sums.actual == 0 && sums.golden != 0; }
  bool is_new() const { return sums.actual != 0 && sums.golden == 0; }
  // Unset for a row that is not a multiple of the reference's.
  std::optional<double> factor() const {
    if (sums.actual == 0 || columns < kFewestColumns || !sums.fits(kSame)) return std::nullopt;
    return sums.factor();
  }
};

using Rows = std::vector<Row>;

// The rows of each matrix, or with dim 1 its columns.
std::map<std::string, Rows> rows_of(const std::vector<Gradient>& gradients, size_t dim = 0) {
  std::map<std::string, Rows> tensors;
  for (const Gradient& one : gradients) {
    const std::vector<int64_t>& shape = one.piece->global_shape;
    if (shape.size() != 2 || shape[0] < 2) continue;
    Rows& rows = tensors[one.piece->name];
    rows.resize(static_cast<size_t>(shape[dim]));
    size_t at = 0;
    plan_of(*one.piece).for_each_run([&](int64_t, int64_t global, int64_t length) {
      for (int64_t i = global; i < global + length; ++i, ++at) {
        Row& row = rows[static_cast<size_t>(dim == 0 ? i / shape[1] : i % shape[1])];
        row.sums.add(one.actual[at], one.expected[at]);
        row.columns = shape[1 - dim];
        row.pieces.insert(one.piece);
      }
    });
  }
  return tensors;
}

std::set<size_t> empty_of(const Rows& rows) {
  std::set<size_t> empty;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].is_empty()) empty.insert(i);
  }
  return empty;
}

// The matrix whose columns are zero here alone where these rows of another one are; "" for none.
std::string same_columns(const std::map<std::string, Rows>& columns, const std::string& name,
                         const std::set<size_t>& empty) {
  for (const auto& [other, lines] : columns) {
    if (other != name && empty_of(lines) == empty) return other;
  }
  return "";
}

// Rows of what belongs to experts are experts or their elements.
bool may_be_tokens(const std::string& name) { return name.find("experts") == name.npos; }

bool has_new(const Rows& rows) {
  return std::any_of(rows.begin(), rows.end(), [](const Row& row) { return row.is_new(); });
}

// The axes of this size, or those of them of which no wrong rank has coordinate 0.
std::string axes_of_size(const Mesh& mesh, size_t size, const std::vector<int64_t>& wrong) {
  std::vector<std::string> all, fitting;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size < 2 || static_cast<size_t>(axis.size) != size) continue;
    all.push_back(axis.name);
    const auto is_later = [&](int64_t rank) { return mesh.coordinate(axis.name, rank) > 0; };
    if (!wrong.empty() && std::ranges::all_of(wrong, is_later)) fitting.push_back(axis.name);
  }
  return fmt::format("{}", fmt::join(fitting.empty() ? all : fitting, " or "));
}

// Of an embedding of positions: the rows of all ranks' parts of a sequence but the first are zero.
std::string positions_begin_anew(const std::string& name, const Rows& rows,
                                 const std::set<size_t>& zeros, const Mesh& mesh,
                                 const std::vector<int64_t>& wrong) {
  size_t due = 0;
  while (due < rows.size() && rows[due].sums.golden != 0) ++due;
  const size_t first = *zeros.begin(), last = *zeros.rbegin();
  if (last + 1 != due || due - first != zeros.size()) return "";
  for (size_t i = due; i < rows.size(); ++i) {
    if (rows[i].sums.golden != 0) return "";
  }
  const std::string axes =
      first > 0 && due % first == 0 ? axes_of_size(mesh, due / first, wrong) : "";
  if (axes.empty()) return "";
  return fmt::format(
      "positions begin anew on each rank of {0}: rows {1} to {2} of {3} are zero here and are "
      "not in the reference, and rows 0 to {4} are not, which are the positions of one rank of "
      "{0}; or the parts of its other ranks do not count",
      axes, first, last, name, first - 1);
}

// Rows of an embedding are tokens. Those of the weight before an activation are its elements, which
// are columns of the weight after it too; and where it is zero elsewhere, other rows are not.
std::string empty_rows(const std::map<std::string, Rows>& tensors,
                       const std::map<std::string, Rows>& columns, const Mesh& mesh,
                       const std::vector<int64_t>& wrong, bool is_alone) {
  for (const auto& [name, rows] : tensors) {
    const int64_t due = std::count_if(rows.begin(), rows.end(),
                                      [](const Row& row) { return row.sums.golden != 0; });
    const std::set<size_t> zeros = empty_of(rows);
    const int64_t empty = std::ssize(zeros);
    if (empty < kFewestRows || empty == due) continue;
    const std::string after = same_columns(columns, name, zeros);
    if (!after.empty()) {
      return fmt::format(
          "an activation is zero where it is not in the reference: {} of {} rows of {} and the "
          "same "
          "columns of {} are zero here alone, as where it takes a statistic, such as a mean or the "
          "largest k, over the columns that one rank holds",
          empty, due, name, after);
    }
    if (has_new(rows) || !may_be_tokens(name)) continue;
    const std::string positions = positions_begin_anew(name, rows, zeros, mesh, wrong);
    if (!positions.empty()) return positions;
    if (is_alone) {
      return fmt::format(
          "one use of this weight gives it no gradient, as where a tied head or embedding is cut "
          "off: {} of {} rows of {} are zero here and are not in the reference, and all other "
          "gradients are right",
          empty, due, name);
    }
    return fmt::format(
        "a part of the batch does not count, such as a microbatch or the rows of a rank: {} of {} "
        "rows of {} are zero here and are not in the reference",
        empty, due, name);
  }
  return "";
}

// The rows of one factor.
struct Weight {
  double factor = 0;
  int64_t rows = 0;
  std::set<const RecordedPiece*> pieces = {};
};

// By factor.
std::vector<Weight> weights_of(const Rows& rows) {
  std::vector<Weight> weights;
  std::multimap<double, const Row*> sorted;
  for (const Row& row : rows) {
    if (const auto factor = row.factor()) sorted.emplace(*factor, &row);
  }
  for (const auto& [factor, row] : sorted) {
    const bool is_next =
        weights.empty() || std::fabs(factor - weights.back().factor) > kSame * std::fabs(factor);
    if (is_next) weights.push_back({factor});
    ++weights.back().rows;
    weights.back().pieces.insert(row->pieces.begin(), row->pieces.end());
  }
  return weights;
}

// Whether a rank has rows of two factors. Otherwise a rank's part of the tensor has its own factor,
// which says nothing of the batch.
bool share_a_piece(const std::vector<Weight>& weights) {
  std::set<const RecordedPiece*> seen;
  for (const Weight& weight : weights) {
    for (const RecordedPiece* piece : weight.pieces) {
      if (!seen.insert(piece).second) return true;
    }
  }
  return false;
}

// Means over n_i of N tokens have the factors N / n_i, or where k of them are averaged N / (k n_i).
struct Means {
  bool are_added = false;
  std::vector<int64_t> parts = {};  // how many have each weight
  double inverses = 0;              // sum of those of all parts
};

// The fewest parts whose means have these weights. Several may have as many tokens.
std::optional<Means> means_of(const std::vector<Weight>& weights) {
  constexpr size_t kMostWeights = 5;  // of which several parts may have one
  constexpr int64_t kMostOfOne = 4;
  const int64_t most = weights.size() > kMostWeights ? 1 : kMostOfOne;
  std::optional<Means> fewest;
  int64_t of_fewest = 0;
  std::vector<int64_t> parts(weights.size(), 1);
  for (bool is_last = false; !is_last;) {
    double inverses = 0;
    for (size_t i = 0; i < parts.size(); ++i) inverses += double(parts[i]) / weights[i].factor;
    const int64_t all = std::accumulate(parts.begin(), parts.end(), int64_t{0});
    for (const bool are_added : {false, true}) {
      const double due = are_added ? 1 : static_cast<double>(all);
      if (!(std::fabs(inverses - due) <= kSame * due) || (fewest && all >= of_fewest)) continue;
      fewest = {are_added, parts, inverses};
      of_fewest = all;
    }
    size_t at = 0;
    while (at < parts.size() && parts[at] == most) parts[at++] = 1;
    is_last = at == parts.size();
    if (!is_last) ++parts[at];
  }
  return fewest;
}

std::string unequal_weights(const std::string& name, const Rows& rows) {
  const auto is_absent = [](const Row& row) { return row.sums.golden == 0; };
  const bool are_tokens =
      may_be_tokens(name) && !has_new(rows) && std::any_of(rows.begin(), rows.end(), is_absent);
  if (!are_tokens) return "";
  std::vector<Weight> weights = weights_of(rows);
  // A row alone may come from several parts, unless many fit together.
  if (!means_of(weights) || weights.size() < kFewestThatFit) {
    std::erase_if(weights, [](const Weight& weight) { return weight.rows < kFewestRows; });
  }
  if (weights.size() < 2 || weights.size() > kMostParts || !share_a_piece(weights)) return "";
  const std::optional<Means> means = means_of(weights);
  std::vector<std::string> texts, shares;
  bool is_less = true;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Weight& weight = weights[i];
    texts.push_back(fmt::format("{} {} {:.6g} x the reference", weight.rows,
                                weight.rows == 1 ? "row is" : "rows are", weight.factor));
    if (means) {
      const std::string share = fmt::format("{:.4g}%", 100 / (means->inverses * weight.factor));
      shares.insert(shares.end(), static_cast<size_t>(means->parts[i]), share);
    }
    is_less = is_less && weight.factor > 0 && weight.factor < 1;
  }
  const std::string evidence = fmt::format("of {}, {}", name, fmt::join(texts, ", "));
  if (means) {
    return fmt::format(
        "each part of the batch, such as a rank's rows or a microbatch, is a mean over its own "
        "tokens{}, where each token of the whole batch should count equally: {}, as parts with {} "
        "of the tokens give",
        means->are_added ? ", and these means are added" : "", evidence,
        fmt::join(shares, " and "));
  }
  return fmt::format(
      "parts of the batch, such as a rank's rows or a microbatch, have other weights than in the "
      "reference{}: {}",
      is_less ? ", each less than 1, as where each rank clips its own gradients before their sum"
              : "",
      evidence);
}

}  // namespace

std::string clue_of_batch_parts(const std::vector<Gradient>& gradients, const Mesh& mesh,
                                const std::vector<int64_t>& wrong) {
  const std::map<std::string, Rows> tensors = rows_of(gradients);
  std::set<std::string> all, wrong_ones;
  for (const Gradient& one : gradients) {
    all.insert(one.piece->name);
    if (!one.is_right()) wrong_ones.insert(one.piece->name);
  }
  const bool is_alone = wrong_ones.size() == 1 && all.size() > 2;
  std::string clue = empty_rows(tensors, rows_of(gradients, 1), mesh, wrong, is_alone);
  for (const auto& [name, rows] : tensors) {
    if (clue.empty()) clue = unequal_weights(name, rows);
  }
  return clue;
}

}  // namespace shardproof::sim::recorded
