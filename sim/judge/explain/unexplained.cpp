// The text about values that no hypothesis explains.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/count_of.h"
#include "sim/judge/diff/index_plan.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/judge/explain/hypotheses.h"
#include "sim/judge/explain/wording.h"

namespace shardproof::sim::judge {
namespace {

constexpr const char* kThroughFloat32 =
    "computed or stored in float32 somewhere on the way, or from a value that is off by as little";
constexpr int64_t kFewestOfShare = 8;  // elements; roundings of fewer may look like one share
constexpr double kLeastOfFloat32 = 0x1p-28, kMostOfFloat32 = 1e-6;  // of a tensor's size
constexpr double kLargestRounding = 20;   // in allowances; a lower precision rounds by less
constexpr double kMostOfRounding = 0.25;  // of the tensor's scale

// "3", "2..5", "1, 4, 6"
std::string index_text(const std::set<int64_t>& indices) {
  const int64_t first = *indices.begin(), last = *indices.rbegin();
  if (first == last) return std::to_string(first);
  if (last - first + 1 == static_cast<int64_t>(indices.size())) {
    return fmt::format("{}..{}", first, last);
  }
  const auto shown = std::min<int64_t>(std::ssize(indices), 8);
  return fmt::format("{}{}", fmt::join(indices.begin(), std::next(indices.begin(), shown), ", "),
                     shown < std::ssize(indices) ? " .." : "");
}

// How far wrong elements are off, and in which direction.
struct Roundings {
  double largest = 0;
  int64_t above = 0, below = 0;

  void add(double error) {
    largest = std::max(largest, std::fabs(error));
    (error > 0 ? above : below) += 1;
  }
  // Whether they may be roundings to float32: neither less nor much more than these, and both ways
  // if they are many.
  bool may_be_of_float32(double size) const {
    const bool both = above > 0 && below > 0;
    return largest > kLeastOfFloat32 * size && largest < kMostOfFloat32 * size &&
           (both || above + below < kFewestOfShare);
  }
};

Roundings errors_of(const Symptoms& symptoms) {
  Roundings errors;
  for (const Piece* piece : symptoms.pieces) {
    for (size_t i = 0; i < piece->actual.size(); ++i) {
      const double error = piece->actual[i] - piece->golden[i];
      if (std::fabs(error) > piece->allowance) errors.add(error);
    }
  }
  return errors;
}

// The wrong elements of a tensor and their indices.
struct Wrong {
  std::vector<std::set<int64_t>> at, seen;  // per dim
  Roundings errors;
  bool zeros = true, golden_zeros = true;
  FactorSums sums;
  FactorSums off;  // of the differences: they are one share of the golden, or not
};

Wrong wrong_elements(const Assembled& tensor) {
  Wrong wrong;
  wrong.at.resize(tensor.shape.size());
  wrong.seen.resize(tensor.shape.size());
  for (size_t e = 0; e < tensor.actual.size(); ++e) {
    if (!tensor.known[e]) continue;
    const bool bad = tensor.is_wrong(e);
    const std::vector<int64_t> index = unravel(static_cast<int64_t>(e), tensor.shape);
    for (size_t d = 0; d < index.size(); ++d) {
      wrong.seen[d].insert(index[d]);
      if (bad) wrong.at[d].insert(index[d]);
    }
    if (!bad) continue;
    wrong.errors.add(tensor.actual[e] - tensor.golden[e]);
    wrong.zeros = wrong.zeros && tensor.actual[e] == 0;
    wrong.golden_zeros = wrong.golden_zeros && tensor.golden[e] == 0;
    wrong.sums.add(tensor.actual[e], tensor.golden[e]);
    wrong.off.add(tensor.actual[e] - tensor.golden[e], tensor.golden[e]);
  }
  return wrong;
}

// The indices in the full tensor.
std::set<int64_t> in_full(const Assembled& tensor, size_t dim, const std::set<int64_t>& indices) {
  if (dim > 0 || tensor.drawn.empty()) return indices;
  std::set<int64_t> rows;
  for (const int64_t index : indices) rows.insert(tensor.drawn[static_cast<size_t>(index)]);
  return rows;
}

// " (the part of tp 1)" when the wrong indices of a dim are those of one rank of an axis, several
// in a row; where axes have one size " (the part of dp 1 or tp 1)"; else "".
std::string shard_text(const Assembled& tensor, const Wrong& wrong, const Mesh& mesh) {
  const std::vector<int64_t>& shape = tensor.shape;
  for (size_t d = tensor.drawn.empty() ? 0 : 1; d < shape.size(); ++d) {
    if (wrong.at[d].size() == wrong.seen[d].size()) continue;
    std::vector<std::string> parts;
    for (const std::string& axis : mesh.names()) {
      if (shape[d] % mesh.size(axis) != 0) continue;
      const int64_t length = shape[d] / mesh.size(axis);
      const int64_t first = *wrong.at[d].begin();
      if (length > 1 && first % length == 0 && static_cast<int64_t>(wrong.at[d].size()) == length &&
          *wrong.at[d].rbegin() == first + length - 1) {
        parts.push_back(fmt::format("{} {}", axis, first / length));
      }
    }
    if (!parts.empty()) return fmt::format(" (the part of {})", fmt::join(parts, " or "));
  }
  return "";
}

std::string where_text(const Assembled& tensor, const Wrong& wrong) {
  std::string where;
  for (size_t d = 0; d < tensor.shape.size(); ++d) {
    const std::set<int64_t>& at = wrong.at[d];
    if (at.empty() || at.size() == wrong.seen[d].size()) continue;
    const bool in_a_row = *at.rbegin() - *at.begin() + 1 == static_cast<int64_t>(at.size());
    if (!in_a_row && 2 * at.size() > wrong.seen[d].size()) continue;
    where += fmt::format("{}{} {}", where.empty() ? "" : ", ", dim_name(tensor, d),
                         index_text(in_full(tensor, d, at)));
  }
  return where;
}

// Whether the errors are as large as roundings in the case's own narrow dtype and go both ways.
// They are still wrong where more exact values are due.
bool looks_rounded(const Roundings& errors, Precision precision, double scale) {
  if (precision != Precision::kBFloat16 && precision != Precision::kFloat16) return false;
  const double relative = errors.largest / scale, eps = eps_of_precision(precision);
  if (!(relative < eps / 2 && relative > eps / 64)) return false;
  return errors.above > 0 && errors.below > 0;
}

// "0.9 x golden on all ranks", or where ranks have other values "0.9 x golden on rank 0, 1.1 x
// golden on rank 1".
std::string factors_of_scalar(const Rows& wrong, const std::string& on_ranks) {
  constexpr size_t kListed = 4;
  std::vector<std::pair<std::string, std::vector<int64_t>>> factors;
  for (const ResultRow* row : wrong) {
    const double times = row->actual_value / row->golden_value;
    const std::string factor =
        is_near_one(times) ? times_nearly_one(times) : fmt::format("{:.8g}", times);
    const auto known = std::find_if(factors.begin(), factors.end(),
                                    [&](const auto& one) { return one.first == factor; });
    if (known == factors.end()) {
      factors.push_back({factor, {row->rank}});
    } else if (known->second.back() != row->rank) {  // it may have reported several times
      known->second.push_back(row->rank);
    }
  }
  if (factors.size() == 1) return factors.front().first + " x golden " + on_ranks;
  std::string text;
  for (size_t i = 0; i < std::min(kListed, factors.size()); ++i) {
    const auto& [factor, ranks] = factors[i];
    text += fmt::format("{}{} x golden on {}", i > 0 ? ", " : "", factor, ranks_text(ranks));
  }
  const size_t more = factors.size() - std::min(kListed, factors.size());
  return text + (more > 0 ? fmt::format(", and {} other values", more) : "");
}

// Where all ranks have one wrong number of the forward pass that is a quotient of counts, which
// chance gives less than once in a million times: "; 29/43".
void take_quotient(const Difference& difference, Explanation& out) {
  const ResultRow& first = *difference.wrong.front();
  const bool is_forward = first.phase == Phase::kForward;
  if (difference.symptoms.precision != Precision::kFloat64 || !is_forward) return;
  // A whole number is one that was never set, rather than one that was never divided.
  if (first.actual_value == std::round(first.actual_value)) return;
  const double factor = first.actual_value / first.golden_value;
  const auto differs = [&](const ResultRow* row) {
    return !(std::fabs(row->actual_value - factor * row->golden_value) <= row->allowance);
  };
  if (std::any_of(difference.wrong.begin(), difference.wrong.end(), differs)) return;
  const Explanation counts = words_for_quotient(factor);
  if (!counts.is_of_counts) return;
  out.pattern += "; " + counts.pattern;
  out.likely = counts.likely;
  out.is_of_counts = true;
}

}  // namespace

bool may_be_rounding(const ResultRow& row) {
  return row.rounding_only && row.worst_ratio < kLargestRounding &&
         row.worst_error < kMostOfRounding * row.golden_scale;
}

std::optional<Proposal> propose_where(const Assembled& tensor, const Mesh& mesh) {
  if (tensor.shape.empty()) return std::nullopt;
  const Wrong wrong = wrong_elements(tensor);
  if (wrong.at[0].empty()) return std::nullopt;
  const std::string where = where_text(tensor, wrong);
  Proposal out;
  if (!where.empty()) {
    out.pattern = "wrong only at " + where + shard_text(tensor, wrong, mesh);
  }
  const std::string what = where.empty() ? "the wrong elements" : "which";
  const auto append = [&](const std::string& text) {
    out.pattern += (out.pattern.empty() ? "" : ", ") + what + " " + text;
  };
  if (wrong.golden_zeros) {
    append("are exactly zero in the golden");
    out.likely = "padding or dropped positions are counted";
  } else if (wrong.zeros) {
    append("are all zero");  // a single number may be: the sign of an expert's load, for example
    if (tensor.wrong > 1) out.likely = "one part was dropped or never filled";
  } else if (wrong.sums.factor() != 0 && wrong.sums.count > 1 && wrong.sums.fits(1e-6)) {
    const double factor = wrong.sums.factor();
    const bool is_one_share = wrong.off.count >= kFewestOfShare && wrong.off.fits(0.1);
    const bool is_rounding = std::fabs(factor - 1) < 1e-6 && !is_one_share;
    const bool is_float64 = tensor.allowance < 1e-9 * tensor.golden_size;
    const std::string times =
        is_near_one(factor) ? times_nearly_one(factor) : fmt::format("{:.6g}", factor);
    if (!is_rounding) append("are " + times + " x golden");
    const bool is_float32 = wrong.errors.may_be_of_float32(tensor.golden_size);
    if (is_rounding && is_float64 && is_float32) out.likely = kThroughFloat32;
  }
  if (out.pattern.empty()) return std::nullopt;
  for (const std::set<int64_t>& at : wrong.at) {
    out.parameters.insert(out.parameters.end(), at.begin(), at.end());
  }
  return out;
}

Explanation words_by_size(const Difference& difference) {
  const Symptoms& symptoms = difference.symptoms;
  const Rows& wrong = difference.wrong;
  const std::string on_ranks = ranks_clause(symptoms.mesh, spoken_of(symptoms, difference.ranks),
                                            spoken_of(symptoms, ranks_that_hold(symptoms)));
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
    out.pattern = "the value is " + factors_of_scalar(wrong, on_ranks);
    take_quotient(difference, out);
  } else {
    out.pattern =
        fmt::format("{} of {} {} wrong {}, by at most {:.2g}", bad, count_of(count, "element"),
                    count == 1 ? "is" : "are", on_ranks, largest);
    if (scale > 0) out.pattern += fmt::format(" ({:.2g} of the tensor's scale)", largest / scale);
  }
  for (const WrongCount& count : symptoms.wrong_counts) out.pattern += count.text();
  const bool small = symptoms.wrong_counts.empty() &&
                     std::all_of(wrong.begin(), wrong.end(),
                                 [](const ResultRow* row) { return may_be_rounding(*row); });
  if (out.is_of_counts) return out;
  Roundings errors = errors_of(symptoms);
  errors.largest = largest;  // pieces of large tensors are not kept
  const bool may_be_float32 = scale > 0 && errors.may_be_of_float32(scale);
  if (small) {
    out.likely = "rounding, if the float64 case matches: the allowance is exceeded by less than 20";
  } else if (symptoms.precision == Precision::kFloat64 && may_be_float32) {
    out.likely = kThroughFloat32;
  } else if (scale > 0 && looks_rounded(errors, symptoms.precision, scale)) {
    out.likely = fmt::format(
        "rounding, if the float64 case matches: off by as much as {} rounds, where more is due",
        symptoms.precision);
  }
  return out;
}

}  // namespace shardproof::sim::judge
