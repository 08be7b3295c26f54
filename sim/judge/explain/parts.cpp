#include "sim/judge/explain/parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace shardproof::sim {
namespace {

constexpr int64_t kLargestMaskShift = 8;

// "3", "2..5", "1, 4, 6"
std::string index_text(const std::set<int64_t>& indices) {
  const int64_t first = *indices.begin(), last = *indices.rbegin();
  if (first == last) return std::to_string(first);
  if (last - first + 1 == static_cast<int64_t>(indices.size())) {
    return fmt::format("{}..{}", first, last);
  }
  std::string text;
  size_t count = 0;
  for (const int64_t index : indices) {
    if (++count > 8) return text + " ..";
    text += (text.empty() ? "" : ", ") + std::to_string(index);
  }
  return text;
}

struct Sums {
  double golden = 0, product = 0, actual = 0;
  int64_t count = 0;

  void add(double a, double g) {
    golden += g * g;
    product += g * a;
    actual += a * a;
    if (g != 0) ++count;
  }
  double factor() const { return golden > 0 ? product / golden : 0; }
  bool fits(double slack) const {
    return golden > 0 && actual - factor() * product <= slack * slack * actual;
  }
};

// The wrong elements of a tensor, and the indices at which they lie.
struct Wrong {
  std::vector<std::set<int64_t>> at, seen;  // per dim
  bool zeros = true, golden_zeros = true;
  Sums sums;
  Explained by_factor;
};

Wrong wrong_elements(const Assembled& tensor) {
  Wrong wrong;
  wrong.at.resize(tensor.shape.size());
  wrong.seen.resize(tensor.shape.size());
  for (size_t e = 0; e < tensor.actual.size(); ++e) {
    if (!tensor.known[e]) continue;
    const bool bad = tensor.is_wrong(e);
    auto rest = static_cast<int64_t>(e);
    for (size_t d = tensor.shape.size(); d-- > 0;) {
      const int64_t index = rest % tensor.shape[d];
      rest /= tensor.shape[d];
      wrong.seen[d].insert(index);
      if (bad) wrong.at[d].insert(index);
    }
    if (!bad) continue;
    wrong.zeros = wrong.zeros && tensor.actual[e] == 0;
    wrong.golden_zeros = wrong.golden_zeros && tensor.golden[e] == 0;
    wrong.sums.add(tensor.actual[e], tensor.golden[e]);
  }
  return wrong;
}

// " (the part of tp 1)": the wrong indices of a dim are those of one rank of an axis; "" else.
std::string shard_text(const Wrong& wrong, const std::vector<int64_t>& shape, const Mesh& mesh) {
  for (size_t d = 0; d < shape.size(); ++d) {
    if (wrong.at[d].size() == wrong.seen[d].size()) continue;
    for (const MeshAxis& axis : mesh.axes()) {
      if (axis.size == 1 || shape[d] % axis.size != 0) continue;
      const int64_t length = shape[d] / axis.size;
      const int64_t first = *wrong.at[d].begin();
      if (first % length != 0 || static_cast<int64_t>(wrong.at[d].size()) != length ||
          *wrong.at[d].rbegin() != first + length - 1) {
        continue;
      }
      return fmt::format(" (the part of {} {})", axis.name, first / length);
    }
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
    where += fmt::format("{}{} {}", where.empty() ? "" : ", ", dim_name(tensor, d), index_text(at));
  }
  return where;
}

// Per row of the first dim: its factor, or NaN where none fits; 1 where the row is right.
struct RowFactors {
  std::vector<double> factors;
  Explained sums;
};

std::optional<RowFactors> factors_of_rows(const Assembled& tensor) {
  RowFactors out;
  const Walk walk = walk_along(tensor.shape, 0);
  for (int64_t row = 0; row < walk.size; ++row) {
    Sums sums;
    bool wrong = false;
    const auto begin = static_cast<size_t>(row * walk.inner);
    const auto end = begin + static_cast<size_t>(walk.inner);
    for (size_t e = begin; e < end; ++e) {
      if (!tensor.known[e]) continue;
      wrong = wrong || tensor.is_wrong(e);
      sums.add(tensor.actual[e], tensor.golden[e]);
    }
    out.factors.push_back(1);
    if (!wrong) continue;
    if (sums.count < 4 || !sums.fits(0.1)) return std::nullopt;
    const double factor = sums.factor();
    out.factors.back() = factor;
    for (size_t e = begin; e < end; ++e) {
      if (!tensor.known[e]) continue;
      out.sums.add(tensor.actual[e], tensor.golden[e], factor * tensor.golden[e], tensor.allowance);
    }
  }
  return out;
}

std::string factor_list(const std::vector<double>& factors) {
  std::string text;
  for (size_t i = 0; i < factors.size() && i < 8; ++i) {
    text += fmt::format("{}{:.4g}", i > 0 ? ", " : "", factors[i]);
  }
  return factors.size() > 8 ? text + " .." : text;
}

// 0: a row of zeros; 1: not; -1: nothing known there.
std::vector<int8_t> rows_with_values(const Assembled& tensor, const std::vector<double>& values) {
  const int64_t inner = walk_along(tensor.shape, 1).inner;
  std::vector<int8_t> out(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]), -1);
  for (size_t e = 0; e < values.size(); ++e) {
    if (!tensor.known[e]) continue;
    int8_t& here = out[e / static_cast<size_t>(inner)];
    here = static_cast<int8_t>(here == 1 || values[e] != 0);
  }
  return out;
}

// Whether all zeros of `actual` lie where those of `golden` do, `shift` positions on; and at how
// many places that says something.
int64_t masks_agree(const std::vector<int8_t>& actual, const std::vector<int8_t>& golden,
                    int64_t positions, int64_t shift) {
  int64_t telling = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(actual.size()); ++i) {
    const int64_t source = i % positions - shift;
    if (source < 0 || source >= positions) continue;
    const int8_t here = actual[static_cast<size_t>(i)];
    const int8_t there = golden[static_cast<size_t>(i - shift)];
    const int8_t right = golden[static_cast<size_t>(i)];
    if (here < 0 || there < 0) continue;
    if (here != there) return 0;
    if (right != there) ++telling;
  }
  return telling;
}

// Whether what neither mask hides is the golden's but for one factor per sample: another number of
// counted tokens divides it. A mask changes nothing else.
bool unmasked_agree(const Assembled& tensor) {
  const Walk walk = walk_along(tensor.shape, 0);
  for (int64_t sample = 0; sample < walk.size; ++sample) {
    Sums both;
    for (int64_t i = 0; i < walk.inner; ++i) {
      const auto e = static_cast<size_t>(sample * walk.inner + i);
      if (!tensor.known[e] || tensor.actual[e] == 0 || tensor.golden[e] == 0) continue;
      both.add(tensor.actual[e], tensor.golden[e]);
    }
    if (both.count > 0 && !both.fits(0.1)) return false;
  }
  return true;
}

}  // namespace

std::optional<Explanation> explain_row_factors(const Assembled& tensor) {
  if (!tensor.token_dims || tensor.shape.size() < 2 || tensor.shape[0] < 2) return std::nullopt;
  const std::optional<RowFactors> rows = factors_of_rows(tensor);
  if (!rows || rows->sums.share() < kLeastExplained) return std::nullopt;
  std::set<std::string> different;
  for (const double factor : rows->factors) different.insert(fmt::format("{:.5g}", factor));
  if (different.size() < 2) return std::nullopt;  // one common factor is another explanation
  const double choices = 14 * static_cast<double>(rows->factors.size());  // a free number each
  if (!rows->sums.convinces(tensor.allowance, tensor.golden_size, choices)) return std::nullopt;
  return Explanation{
      fmt::format("each sample is a multiple of the golden's, of its own: {}",
                  factor_list(rows->factors)),
      "samples are weighted by something of their own sample, microbatch or rank where the global "
      "batch's belongs, or count more than once",
      rows->sums.share()};
}

std::optional<Explanation> explain_mask_shift(const Assembled& tensor) {
  if (!tensor.token_dims || tensor.shape.size() < 2) return std::nullopt;
  const std::vector<int8_t> actual = rows_with_values(tensor, tensor.actual);
  const std::vector<int8_t> golden = rows_with_values(tensor, tensor.golden);
  if (actual == golden || !unmasked_agree(tensor)) return std::nullopt;
  for (int64_t size = 1; size <= kLargestMaskShift; ++size) {
    for (const int64_t shift : {size, -size}) {
      const int64_t telling = masks_agree(actual, golden, tensor.shape[1], shift);
      if (telling < 4) continue;
      return Explanation{
          fmt::format("the positions that are zero are the golden's moved by {}: {} of them tell",
                      shift, telling),
          "a mask is off by " + std::to_string(size)};
    }
  }
  return std::nullopt;
}

std::optional<Explanation> explain_part(const Assembled& tensor, const Mesh& mesh) {
  if (tensor.shape.empty()) return std::nullopt;
  const Wrong wrong = wrong_elements(tensor);
  if (wrong.at[0].empty()) return std::nullopt;
  const std::string where = where_text(tensor, wrong);
  Explanation out;
  if (!where.empty()) {
    out.pattern = "wrong only at " + where + shard_text(wrong, tensor.shape, mesh);
  }
  const std::string what = where.empty() ? "the wrong elements" : "which";
  const auto append = [&](const std::string& text) {
    out.pattern += (out.pattern.empty() ? "" : ", ") + what + " " + text;
  };
  if (wrong.golden_zeros) {
    append("are exactly zero in the golden");
    out.likely = "padding or dropped positions are counted";
  } else if (wrong.zeros) {
    append("are all zero");
    out.likely = "one part was dropped or never filled";
  } else if (wrong.sums.factor() != 0 && wrong.sums.count > 1 && wrong.sums.fits(1e-6)) {
    append(fmt::format("are {:.6g} x golden", wrong.sums.factor()));
  }
  if (out.pattern.empty()) return std::nullopt;
  return out;
}

}  // namespace shardproof::sim
