// Gradients that some microbatches never reach, or reach several times.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "sim/judge/explain/hypotheses.h"

namespace shardproof::sim::judge {
namespace {

constexpr double kNearCount = 1e-6;   // how near to a whole number a share is, in float64
constexpr double kDependent = 1e-6;   // of a gradient, beside which it depends on the others
constexpr double kMostCount = 8;      // times that a microbatch may count
constexpr double kMostLeftOver = 32;  // allowances that the golden's own sum may leave

using Column = std::vector<double>;

double dot(const Column& a, const Column& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

void take_off(Column& from, const Column& unit, double times) {
  for (size_t i = 0; i < from.size(); ++i) from[i] -= times * unit[i];
}

// The gradients of single microbatches, as a basis in which a sum of them shows each one's factor.
class Basis {
 public:
  explicit Basis(const std::vector<Column>& parts) {
    for (const Column& part : parts) {
      const double size = std::sqrt(dot(part, part));
      Column rest = part;
      rows_.emplace_back();
      for (const Column& unit : units_) {
        rows_.back().push_back(dot(rest, unit));
        take_off(rest, unit, rows_.back().back());
      }
      const double left = std::sqrt(dot(rest, rest));
      if (!(left > kDependent * size)) is_independent_ = false;
      rows_.back().push_back(left);
      for (double& value : rest) value /= left;
      units_.push_back(std::move(rest));
    }
  }
  bool is_independent() const { return is_independent_; }

  // The factor of each part whose sum is nearest to `sum`.
  Column factors_of(Column sum) const {
    Column factors;
    for (const Column& unit : units_) {
      factors.push_back(dot(sum, unit));
      take_off(sum, unit, factors.back());
    }
    for (size_t k = factors.size(); k-- > 0;) {
      for (size_t j = k + 1; j < factors.size(); ++j) factors[k] -= rows_[j][k] * factors[j];
      factors[k] /= rows_[k][k];
    }
    return factors;
  }

 private:
  std::vector<Column> units_;  // orthonormal
  std::vector<Column> rows_;   // rows_[j][k]: part j along unit k
  bool is_independent_ = true;
};

Column known_of(const Assembled& tensor, const double* values) {
  Column known;
  for (size_t e = 0; e < tensor.known.size(); ++e) {
    if (tensor.known[e]) known.push_back(values[e]);
  }
  return known;
}

// Whether the golden has nothing of the part. Where none of a microbatch's tokens counts in the
// batch, the golden of the microbatch alone has one that does (model/seeded_batch.cpp).
std::vector<bool> are_idle(const Assembled& tensor, const std::vector<Column>& parts) {
  const Basis basis(parts);
  std::vector<bool> idle(parts.size());
  if (!basis.is_independent()) return idle;
  const Column golden = known_of(tensor, tensor.golden.data());
  const Column due = basis.factors_of(golden);
  for (size_t k = 0; k < parts.size(); ++k) {
    const double size = std::fabs(due[k]) * std::sqrt(dot(parts[k], parts[k]));
    idle[k] = size <= kDependent * std::sqrt(dot(golden, golden));
  }
  return idle;
}

// How often each microbatch counts, and what such a sum explains.
struct Counted {
  std::vector<int64_t> counts;
  Explained sums;
};

std::optional<Counted> count_in(const Assembled& tensor, const std::vector<Column>& parts) {
  const Basis basis(parts);
  if (!basis.is_independent()) return std::nullopt;
  const Column golden = known_of(tensor, tensor.golden.data());
  const Column actual = known_of(tensor, tensor.actual.data());
  const Column due = basis.factors_of(golden), held = basis.factors_of(actual);
  Counted out;
  Column proposed(golden.size()), whole(golden.size());
  for (size_t k = 0; k < parts.size(); ++k) {
    const double share = held[k] / due[k];
    const double count = std::round(share);
    if (!(std::fabs(share - count) <= kNearCount && count >= 0 && count <= kMostCount)) {
      return std::nullopt;
    }
    out.counts.push_back(static_cast<int64_t>(count));
    take_off(proposed, parts[k], -count * due[k]);
    take_off(whole, parts[k], -due[k]);
  }
  for (size_t e = 0; e < golden.size(); ++e) {
    if (!(std::fabs(whole[e] - golden[e]) <= kMostLeftOver * tensor.allowance)) return std::nullopt;
    out.sums.add(actual[e], golden[e], proposed[e], tensor.allowance);
  }
  return out;
}

// Whether each rank has one backward pass, so that a part is what a rank has.
bool have_one_each(const std::vector<MicrobatchGradient>& parts) {
  return std::ranges::all_of(parts,
                             [](const MicrobatchGradient& part) { return part.microbatch == 0; });
}

// "microbatch 3", with its samples where other ranks have another microbatch of that number.
std::vector<std::string> names_of(const std::vector<MicrobatchGradient>& parts) {
  std::map<int64_t, int64_t> counts;
  for (const MicrobatchGradient& part : parts) ++counts[part.microbatch];
  std::vector<std::string> names;
  const bool is_one_each = have_one_each(parts);
  for (const MicrobatchGradient& part : parts) {
    if (is_one_each) {
      names.push_back(fmt::format("the sample{} {}", part.samples.size() == 1 ? "" : "s",
                                  fmt::join(part.samples, ", ")));
      continue;
    }
    names.push_back(fmt::format("microbatch {}", part.microbatch));
    if (counts[part.microbatch] == 1) continue;
    names.back() += fmt::format(" with sample{} {}", part.samples.size() == 1 ? "" : "s",
                                fmt::join(part.samples, ", "));
  }
  return names;
}

Explanation words_for(const Counted& found, const std::vector<MicrobatchGradient>& parts) {
  const std::vector<std::string> names = names_of(parts);
  const bool is_one_each = have_one_each(parts);
  const std::string of_parts =
      fmt::format("of {}{}", parts.size(), is_one_each ? " parts of the batch" : "");
  std::vector<std::string> once, left_out, several;
  size_t only = 0;
  for (size_t k = 0; k < names.size(); ++k) {
    const int64_t count = found.counts[k];
    if (count == 1) only = k;
    if (count == 1) once.push_back(names[k]);
    if (count == 0) left_out.push_back(names[k]);
    const bool is_plural = is_one_each && parts[k].samples.size() > 1;
    if (count > 1) {
      several.push_back(
          fmt::format("{} {} {} times", names[k], is_plural ? "count" : "counts", count));
    }
  }
  if (several.empty() && once.size() == 1) {
    const std::string alone =
        fmt::format("it is the gradient of {} alone, {}", once.front(), of_parts);
    if (is_one_each) {
      return {alone,
              "the gradients of the ranks that have the other samples are missing from the sum"};
    }
    const bool is_last = std::ranges::all_of(
        parts, [&](const auto& part) { return part.microbatch <= parts[only].microbatch; });
    return {alone,
            is_last ? "each backward replaces what earlier ones left, or the last microbatch alone "
                      "is trained or reduced"
                    : "the backwards of the other microbatches do not run, or are not added"};
  }
  if (several.empty()) {
    return {fmt::format("it is the golden without {}, {}", fmt::join(left_out, " and "), of_parts),
            is_one_each
                ? fmt::format("the gradients of the ranks that have {} are missing from "
                              "the sum",
                              fmt::join(left_out, " and "))
                : fmt::format("the backward of {} does not run, or what it leaves is dropped{}",
                              fmt::join(left_out, " and "),
                              left_out.front().find("sample") == std::string::npos
                                  ? ""
                                  : "; or the gradient of a rank that has these samples is missing "
                                    "from the sum")};
  }
  std::string pattern = fmt::format("it is the golden's sum in which {}", fmt::join(several, ", "));
  if (!left_out.empty()) pattern += fmt::format(" and {} not at all", fmt::join(left_out, ", "));
  return {pattern, is_one_each ? "the gradient of a rank is added more than once"
                               : "what a backward leaves is added more than once"};
}

}  // namespace

std::optional<Proposal> propose_microbatches(const Difference& difference) {
  const std::vector<MicrobatchGradient>& given = difference.symptoms.microbatch_gradients;
  if (given.empty() || !difference.first_copies) return std::nullopt;
  const Assembled& tensor = *difference.first_copies;
  if (!tensor.drawn.empty()) return std::nullopt;
  std::vector<Column> parts;
  std::vector<MicrobatchGradient> named;  // those whose gradient is not zero
  for (const MicrobatchGradient& part : given) {
    Column values = known_of(tensor, part.values);
    if (dot(values, values) == 0) continue;
    parts.push_back(std::move(values));
    named.push_back(part);
  }
  const std::vector<bool> idle = are_idle(tensor, parts);
  for (size_t k = idle.size(); k-- > 0;) {
    if (!idle[k]) continue;
    parts.erase(parts.begin() + static_cast<int64_t>(k));
    named.erase(named.begin() + static_cast<int64_t>(k));
  }
  if (parts.size() < 2) return std::nullopt;
  const auto found = count_in(tensor, parts);
  if (!found) return std::nullopt;
  const auto is_first = [&](int64_t count) { return count == found->counts.front(); };
  if (std::ranges::all_of(found->counts, is_first)) return std::nullopt;
  if (difference.last_copies) {
    const auto again = count_in(*difference.last_copies, parts);
    if (!again || again->counts != found->counts) return std::nullopt;
  }
  const double choices = std::log(3.0) * static_cast<double>(parts.size());
  if (!found->sums.convinces(tensor.allowance, tensor.golden_size, choices)) return std::nullopt;
  const Explanation words = words_for(*found, named);
  return Proposal{.pattern = words.pattern, .likely = words.likely, .description = choices}
      .explaining(found->sums, tensor.wrong);
}

}  // namespace shardproof::sim::judge
