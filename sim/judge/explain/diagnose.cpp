#include "sim/judge/explain/diagnose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>

#include "sim/judge/diff/addends.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/judge/explain/assembled.h"
#include "sim/judge/explain/chunk_order.h"
#include "sim/judge/explain/factors.h"
#include "sim/judge/explain/missing_sums.h"
#include "sim/judge/explain/offset.h"
#include "sim/judge/explain/parts.h"
#include "sim/judge/explain/shared_findings.h"
#include "sim/judge/explain/structure.h"

namespace shardproof::sim {
namespace {

constexpr int64_t kFewChunks = 8;  // beyond that a shift is the simpler explanation
constexpr int64_t kMostChunks = 128;

Rows wrong_rows(const Symptoms& symptoms) {
  Rows wrong;
  for (const ResultRow* row : symptoms.rows) {
    if (row->is_wrong()) wrong.push_back(row);
  }
  return wrong;
}

std::optional<Explanation> explain_non_finite(const Symptoms& symptoms, const Rows& wrong) {
  Rows rows;
  for (const ResultRow* row : wrong) {
    if (!std::isfinite(row->actual_value)) rows.push_back(row);
  }
  if (rows.empty()) return std::nullopt;
  const std::vector<int64_t> ranks = ranks_of(rows);
  int64_t nan = 0, infinite = 0, count = 0;
  for (const Piece* piece : symptoms.pieces) {
    if (!std::binary_search(ranks.begin(), ranks.end(), piece->rank)) continue;
    count += static_cast<int64_t>(piece->actual.size());
    for (const double value : piece->actual) {
      nan += std::isnan(value);
      infinite += std::isinf(value);
    }
  }
  const std::string what =
      count == 0 ? fmt::format("{}", rows.front()->actual_value)
                 : fmt::format("{} NaN and {} infinite of {} elements", nan, infinite, count);
  return Explanation{what + " " + clause_of(symptoms, rows),
                     "an overflow, a division by zero, or memory that was never filled"};
}

// The wrong rows of ranks whose values came.
Rows seen_rows(const Symptoms& symptoms, const Rows& wrong) {
  std::set<int64_t> ranks;
  for (const Piece* piece : symptoms.pieces) ranks.insert(piece->rank);
  Rows seen;
  for (const ResultRow* row : wrong) {
    if (ranks.contains(row->rank)) seen.push_back(row);
  }
  return seen;
}

std::optional<Explanation> explain_zeros(const Symptoms& symptoms, const Rows& wrong) {
  if (symptoms.pieces.empty()) return std::nullopt;
  for (const Piece* piece : symptoms.pieces) {
    for (const double value : piece->actual) {
      if (value != 0) return std::nullopt;
    }
  }
  return Explanation{"every element is 0 " + clause_of(symptoms, seen_rows(symptoms, wrong)),
                     "it was never filled, or a gradient was cut off"};
}

// One value everywhere but in padding, where the golden has many.
std::optional<Explanation> explain_one_value(const Symptoms& symptoms, const Rows& wrong) {
  constexpr size_t kFewest = 8;
  std::set<double> actual, golden;
  size_t count = 0;
  for (const Piece* piece : symptoms.pieces) {
    for_each_element(*piece, [&](int64_t, size_t local) {
      if (actual.size() > 1) return;
      actual.insert(piece->actual[local]);
      golden.insert(piece->golden[local]);
      ++count;
    });
    if (actual.size() > 1) return std::nullopt;
  }
  if (count < kFewest || golden.size() < kFewest) return std::nullopt;
  return Explanation{fmt::format("every element is {:.6g} {}", *actual.begin(),
                                 clause_of(symptoms, seen_rows(symptoms, wrong))),
                     "it was never filled, and is what it was made with"};
}

std::optional<Explanation> explain_common_factor(const Symptoms& symptoms, const Rows& wrong) {
  return explain_factor(symptoms, wrong, clause_of(symptoms, wrong));
}

std::optional<Explanation> explain_sum(const Symptoms& symptoms, const Rows& wrong) {
  return explain_missing_sum(symptoms, clause_of(symptoms, seen_rows(symptoms, wrong)));
}

// The golden's elements in another place, or wrong in parts, tried on one copy of each element.
std::optional<Explanation> explain_copy(const Symptoms& symptoms, const Assembled& tensor,
                                        const std::vector<const Piece*>& pieces) {
  std::optional<Explanation> found = explain_transposition(tensor);
  if (!found) found = explain_chunk_order(tensor, symptoms.mesh, 2, kFewChunks);
  if (!found) found = explain_shift(tensor);
  if (!found) found = explain_chunk_order(tensor, symptoms.mesh, kFewChunks + 1, kMostChunks);
  if (!found) found = explain_read_order(pieces);
  if (!found) found = explain_row_factors(tensor);
  if (!found) found = explain_offset(tensor);
  if (!found) found = explain_mask_shift(tensor);
  if (!found) found = explain_part(tensor, symptoms.mesh);
  return found;
}

// Where ranks hold other values of the same elements, what is said of the first copies must be true
// of the last ones.
std::optional<Explanation> explain_structure(const Symptoms& symptoms, const Rows& wrong) {
  const std::optional<Assembled> tensor = assemble(symptoms.pieces);
  if (!tensor) return std::nullopt;
  std::optional<Explanation> found = explain_copy(symptoms, *tensor, symptoms.pieces);
  if (found && tensor->copies_differ) {
    const std::vector<const Piece*> last(symptoms.pieces.rbegin(), symptoms.pieces.rend());
    const auto again = explain_copy(symptoms, *assemble(last), last);
    if (!again || again->pattern != found->pattern) return std::nullopt;
  }
  if (found) found->pattern += " " + clause_of(symptoms, seen_rows(symptoms, wrong));
  return found;
}

// Whether the errors are as large as the case's own narrow dtype rounds, and go both ways. They are
// wrong all the same, where more exact values are due.
bool looks_rounded(const Symptoms& symptoms, double relative_error) {
  if (symptoms.precision != "bfloat16" && symptoms.precision != "float16") return false;
  const double eps = eps_of_precision(symptoms.precision);
  if (!(relative_error < eps / 2 && relative_error > eps / 64)) return false;
  bool above = false, below = false;
  for (const Piece* piece : symptoms.pieces) {
    for (size_t i = 0; i < piece->actual.size(); ++i) {
      const double error = piece->actual[i] - piece->golden[i];
      above = above || error > piece->allowance;
      below = below || error < -piece->allowance;
    }
  }
  return above && below;
}

Explanation explain_by_size(const Symptoms& symptoms, const Rows& wrong) {
  int64_t bad = 0, count = 0;
  double largest = 0, scale = 0;
  for (const ResultRow* row : wrong) {
    bad += row->bad_count;
    count += row->count;
    largest = std::max(largest, row->worst_error);
    scale = std::max(scale, row->golden_scale);
  }
  Explanation out;
  if (wrong.front()->count == 1 && wrong.front()->golden_value != 0) {
    out.pattern = fmt::format("the value is {:.8g} x golden {}",
                              wrong.front()->actual_value / wrong.front()->golden_value,
                              clause_of(symptoms, wrong));
  } else {
    out.pattern = fmt::format("{} of {} elements are wrong {}, by at most {:.2g}", bad, count,
                              clause_of(symptoms, wrong), largest);
    if (scale > 0) out.pattern += fmt::format(" ({:.2g} of the tensor's scale)", largest / scale);
  }
  const bool small = std::all_of(wrong.begin(), wrong.end(),
                                 [](const ResultRow* row) { return may_be_rounding(*row); });
  if (small) {
    out.likely = "rounding, if the float64 case matches: the allowance is exceeded by less than 20";
  } else if (symptoms.precision == "float64" && scale > 0 && largest / scale < 1e-5) {
    out.likely = "computed or stored in float32 somewhere on the way";
  } else if (scale > 0 && looks_rounded(symptoms, largest / scale)) {
    out.likely = fmt::format(
        "rounding, if the float64 case matches: off by as much as {} rounds, where more is due",
        symptoms.precision);
  }
  return out;
}

}  // namespace

bool may_be_rounding(const ResultRow& row) {
  return row.rounding_only && row.worst_ratio < kLargestRounding;
}

std::string mesh_size_named(const Mesh& mesh, double number) {
  const double rounded = std::round(number);
  if (rounded < 2 || std::fabs(number - rounded) > 1e-4 * rounded) return "";
  std::vector<MeshAxis> axes;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size > 1) axes.push_back(axis);
  }
  std::string names;
  size_t fewest = axes.size() + 1;
  for (uint64_t subset = 1; subset < 1ULL << axes.size(); ++subset) {
    double product = 1;
    size_t members = 0;
    std::string name;
    for (size_t i = 0; i < axes.size(); ++i) {
      if (!(subset >> i & 1)) continue;
      product *= static_cast<double>(axes[i].size);
      name += (name.empty() ? "" : " x ") + axes[i].name;
      ++members;
    }
    if (product != rounded || members > fewest) continue;
    names = members < fewest || names.empty() ? "the size of " + name : names + " and of " + name;
    fewest = members;
  }
  return names;
}

std::string ranks_clause(const Mesh& mesh, const std::vector<int64_t>& ranks,
                         const std::vector<int64_t>& among) {
  if (mesh.world_size() == 1) return "on the one rank";
  if (ranks.size() == static_cast<size_t>(mesh.world_size())) return "on all ranks";
  std::string list;
  for (size_t i = 0; i < ranks.size() && i < 8; ++i) {
    list += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  }
  if (ranks.size() > 8) list += fmt::format(" and {} more", ranks.size() - 8);
  std::string clause = ranks.size() == 1 ? "on rank " + list + " only" : "on ranks " + list;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size == 1 || ranks.empty()) continue;
    const int64_t coordinate = mesh.coordinate(axis.name, ranks.front());
    std::vector<int64_t> there;
    for (const int64_t rank : among) {
      if (mesh.coordinate(axis.name, rank) == coordinate) there.push_back(rank);
    }
    if (there == ranks && there.size() < among.size()) {
      return clause + fmt::format(" ({} {})", axis.name, coordinate);
    }
  }
  return clause;
}

namespace {

// One kind of mistake. What it gives must hold on every wrong rank, and leave what is right right.
struct Hypothesis {
  std::string_view name;
  std::optional<Explanation> (*explain)(const Symptoms& symptoms, const Rows& wrong);
};

// What needs no comparing of explanations.
constexpr Hypothesis kPlainFacts[] = {
    {"problem", explain_problem},
    {"not finite", explain_non_finite},
};

// Tried side by side, the simplest first: of two that explain as much the first one is claimed.
constexpr Hypothesis kSimple[] = {
    {"another step", explain_another_step},          {"zeros", explain_zeros},
    {"one factor", explain_common_factor},           {"missing sum", explain_sum},
    {"another tensor", explain_another_tensor},      {"narrow dtype", explain_narrow_dtype},
    {"share of an update", explain_share_of_update}, {"one value", explain_one_value},
};

// Where none of those explains it.
constexpr Hypothesis kFurther[] = {
    {"another step on some ranks", explain_some_ranks},
    {"another place", explain_structure},
};

// The share of the difference that it explains; facts without a share explain all of it.
double share_of(const Explanation& found) { return found.explained < 0 ? 1 : found.explained; }

std::optional<Explanation> best_of(const Symptoms& symptoms, const Rows& wrong) {
  std::vector<Explanation> found;
  for (const Hypothesis& hypothesis : kSimple) {
    if (auto one = hypothesis.explain(symptoms, wrong)) found.push_back(std::move(*one));
  }
  if (found.empty()) return std::nullopt;
  const auto best = std::max_element(
      found.begin(), found.end(),
      [](const Explanation& a, const Explanation& b) { return share_of(a) < share_of(b); });
  for (const Explanation& other : found) {  // as good, and not what is said already
    if (&other == &*best || share_of(other) < share_of(*best) || other.explained < 0) continue;
    if (best->likely.empty() || other.likely.empty() || best->explained < 0) continue;
    best->likely += "; or " + other.likely;
  }
  return *best;
}

std::optional<Explanation> first_of(std::span<const Hypothesis> hypotheses,
                                    const Symptoms& symptoms, const Rows& wrong) {
  for (const Hypothesis& hypothesis : hypotheses) {
    if (auto found = hypothesis.explain(symptoms, wrong)) return found;
  }
  return std::nullopt;
}

}  // namespace

Explanation explain_values(const Symptoms& symptoms) {
  const Rows wrong = wrong_rows(symptoms);
  if (wrong.empty()) return {};
  std::optional<Explanation> found = first_of(kPlainFacts, symptoms, wrong);
  if (!found) found = best_of(symptoms, wrong);
  if (!found) found = first_of(kFurther, symptoms, wrong);
  if (!found) return explain_by_size(symptoms, wrong);
  if (const std::string share = explained_text(found->explained); !share.empty()) {
    found->pattern += "; " + share;
  }
  return *found;
}

Explanation explain_replicas(const Symptoms& symptoms) {
  std::map<uint64_t, std::vector<int64_t>> by_digest;
  for (const ResultRow* row : symptoms.rows) {
    std::vector<int64_t>& ranks = by_digest[row->digest];
    if (ranks.empty() || ranks.back() != row->rank) ranks.push_back(row->rank);
  }
  std::vector<std::vector<int64_t>> camps;
  for (const auto& [digest, ranks] : by_digest) camps.push_back(ranks);
  std::sort(camps.begin(), camps.end(), [](const auto& a, const auto& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  });
  const std::vector<int64_t> all = ranks_of(symptoms.rows);
  Explanation out;
  out.pattern = fmt::format("{} different copies where one belongs; the odd one {}", camps.size(),
                            ranks_clause(symptoms.mesh, camps.front(), all));
  const bool right = std::all_of(symptoms.rows.begin(), symptoms.rows.end(),
                                 [](const ResultRow* row) { return !row->is_wrong(); });
  if (right) {
    out.likely =
        "each rank computed or reduced it on its own: the values are right, the bits differ";
  }
  return out;
}

}  // namespace shardproof::sim
