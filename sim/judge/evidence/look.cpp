#include "sim/judge/evidence/look.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "sim/judge/evidence/explained.h"
#include "sim/judge/evidence/look_at_experts.h"
#include "sim/judge/evidence/values.h"

namespace shardproof::sim::judge {
namespace {

constexpr int kLargestSearch = 256;  // at most so many golden tensors are tried

bool matches_other(const DiffTask& task, const GoldenTensor& other) {
  return diff(against(task, other)).bad_count == 0;
}

bool are_one_number(const GoldenTensor& a, const GoldenTensor& b) {
  return a.value.numel() == 1 && b.value.numel() == 1 && equal(a.value, b.value);
}

// The tensor of this name in the next golden step that has one; null when there is none. Steps in
// which a single number stays the same are passed over: a call of a policy has one learning rate.
const GoldenTensor* next_of(const GoldenTensor& tensor, const GoldenRecord& golden) {
  const GoldenTensor* next = nullptr;
  for (const GoldenTensor& other : golden.tensors()) {
    if (other.name != tensor.name || other.phase != tensor.phase || other.step <= tensor.step) {
      continue;
    }
    const bool sooner = !next || other.step < next->step;
    if (sooner && !are_one_number(tensor, other)) next = &other;
  }
  return next;
}

// Whether at least two elements (one, if there is only one) distinguish `other` from the golden.
bool are_distinct(const Values& now, const std::vector<double>& other) {
  size_t apart = 0;
  for (size_t i = 0; i < now.golden.size(); ++i) {
    apart += !(std::fabs(other[i] - now.golden[i]) <= kDistinctAllowances * now.allowance);
  }
  return apart >= std::min<size_t>(2, now.golden.size());
}

// Whether the whole tensor equals `other` and is clearly distinct from its own golden.
bool is_another(const DiffTask& task, const Values& now, const GoldenTensor& other) {
  return matches_other(task, other) && are_distinct(now, golden_values(task, other));
}

// Whether all wrong elements equal those of `then`, and two of them clearly.
bool wrong_part_equals(const Values& now, const std::vector<double>& then) {
  int64_t apart = 0;
  for (size_t i = 0; i < now.actual.size(); ++i) {
    if (std::fabs(now.actual[i] - now.golden[i]) <= now.allowance) continue;
    if (!(std::fabs(now.actual[i] - then[i]) <= now.allowance)) return false;
    apart += std::fabs(then[i] - now.golden[i]) > kDistinctAllowances * now.allowance;
  }
  return apart >= 2;
}

// Whether all elements equal the golden plus `then`, and two of them clearly.
bool is_sum_with(const Values& now, const std::vector<double>& then) {
  int64_t apart = 0;
  for (size_t i = 0; i < now.actual.size(); ++i) {
    const double beside = now.actual[i] - now.golden[i];
    if (!(std::fabs(beside - then[i]) <= 2 * now.allowance)) return false;
    apart += std::fabs(beside) > kDistinctAllowances * now.allowance;
  }
  return apart >= 2;
}

// The share of the golden's update since `then` by which a weight moved, if one factor explains it.
std::optional<double> share_of_update(const Values& now, const std::vector<double>& then) {
  constexpr size_t kFewest = 16;
  double both = 0, due = 0;
  for (size_t i = 0; i < now.actual.size(); ++i) {
    const double update = now.golden[i] - then[i];
    both += (now.actual[i] - then[i]) * update;
    due += update * update;
  }
  if (now.actual.size() < kFewest || !(due > 0)) return std::nullopt;
  const double share = both / due;
  double left = 0, difference = 0;
  for (size_t i = 0; i < now.actual.size(); ++i) {
    const double proposed = then[i] + share * (now.golden[i] - then[i]);
    left += (now.actual[i] - proposed) * (now.actual[i] - proposed);
    difference += (now.actual[i] - now.golden[i]) * (now.actual[i] - now.golden[i]);
  }
  if (!(left <= (1 - kLeastExplained) * difference)) return std::nullopt;
  return share;
}

// The evidence that the same tensor of the previous step gives.
std::optional<Evidence> look_at_step_before(const DiffTask& task, const GoldenTensor& before,
                                            const Values& now) {
  const GoldenTensor& right = task.golden;
  if (before.value.sizes() != right.value.sizes()) return std::nullopt;
  const std::vector<double> then = golden_values(task, before);
  if (!are_distinct(now, then)) return std::nullopt;
  if (matches_other(task, before)) return EqualsStep{.step = before.step};
  if (wrong_part_equals(now, then)) return PartEqualsStep{before.step};
  if (is_sum_with(now, then)) return SumOfSteps{before.step, right.step};
  if (right.kind != ObservationKind::kParameter) return std::nullopt;
  const std::optional<double> share = share_of_update(now, then);
  if (!share) return std::nullopt;
  return ShareOfUpdate{*share};
}

constexpr size_t kFewestNarrow = 8;
constexpr double kRoundingsOfFew = 2;

// Whether every actual value is one of a narrow dtype, the golden values are not, and the error is
// at most `roundings` roundings.
template <class IsNarrow>
bool only_narrow_values(const Values& values, const IsNarrow& is_narrow, double eps,
                        double roundings) {
  bool golden_too = true;
  double error = 0, size = 0;
  for (size_t i = 0; i < values.actual.size(); ++i) {
    const double actual = values.actual[i], golden = values.golden[i];
    if (!std::isfinite(actual) || !is_narrow(actual)) return false;
    golden_too = golden_too && is_narrow(golden);
    error += (actual - golden) * (actual - golden);
    size += golden * golden;
  }
  // A few numbers of a narrow dtype may be so by chance, unless they are the nearest ones.
  if (values.actual.size() < kFewestNarrow) roundings = kRoundingsOfFew;
  return !golden_too && error <= roundings * roundings * eps * eps * size;
}

// The narrower dtype that represents all these values of a tensor of `dtype`; "" when there is
// none.
const char* narrow_dtype(const Values& values, Precision precision, Dtype dtype) {
  if (precision == Precision::kBFloat16) return "";
  constexpr double kRoundings = 64;
  if (only_narrow_values(values, is_bfloat16, 0x1p-8, kRoundings)) return "bfloat16";
  if (dtype == Dtype::kFloat16) return "";
  if (only_narrow_values(values, is_float16, 0x1p-11, kRoundings)) return "float16";
  if (precision == Precision::kFloat32) return "";
  return only_narrow_values(values, is_float32, 0x1p-24, 1024) ? "float32" : "";
}

// Whether a value has at most so many bits from the first to the last that is set.
bool has_bits(double value, int most) {
  int exponent = 0;
  const double scaled = std::ldexp(std::frexp(value, &exponent), most);
  return scaled == std::trunc(scaled);
}

// The narrow dtype through which the addends of the sums went, by the size of the error; "" for
// none. Nearly all sums of a few short numbers are float32 values, unlike sums of float64 values,
// and most have fewer bits than these: numbers that were float32 before use them all.
const char* dtype_of_addends(const Values& values) {
  constexpr size_t kFewest = 8;
  constexpr int kBitsOfSums = 21;  // one in eight float32 values has as few
  size_t short_ones = 0, shorter = 0;
  double error = 0, size = 0;
  for (size_t i = 0; i < values.actual.size(); ++i) {
    const double actual = values.actual[i], golden = values.golden[i];
    if (!std::isfinite(actual)) return "";
    short_ones += is_float32(actual) && !is_float32(golden);
    shorter += has_bits(actual, kBitsOfSums);
    error += (actual - golden) * (actual - golden);
    size += golden * golden;
  }
  if (short_ones < kFewest || 100 * short_ones < 99 * values.actual.size()) return "";
  if (3 * shorter < 2 * values.actual.size()) return "";
  const double relative = std::sqrt(error / size);  // one rounding is at most 2^-9, 2^-12
  if (relative > 0x1p-12 && relative < 0x1p-8) return "bfloat16";
  return relative > 0x1p-16 && relative < 0x1p-12 ? "float16" : "";
}

// Another tensor of the same phase and step that it equals; null when none of those tried does.
const GoldenTensor* equal_tensor(const DiffTask& task, const Values& now,
                                 const GoldenRecord& golden) {
  const GoldenTensor& right = task.golden;
  if (task.plan.count < 2) return nullptr;
  int tried = 0;
  for (const GoldenTensor& other : golden.tensors()) {
    if (&other == &right || other.phase != right.phase || other.step != right.step ||
        other.value.sizes() != right.value.sizes() || other.rows != right.rows ||
        other.value.dtype() != Dtype::kFloat64 || other.scale == 0) {
      continue;
    }
    if (++tried > kLargestSearch) return nullptr;
    if (is_another(task, now, other)) return &other;
  }
  return nullptr;
}

// Of a wrong selection of experts; nothing where the golden does not say by how much it chose.
std::optional<Evidence> look_at_margins(const DiffTask& task, const GoldenRecord& golden) {
  const GoldenTensor& right = task.golden;
  if (!is_route_ids(right.name)) return std::nullopt;
  const std::string selection = right.name.substr(0, right.name.rfind('.'));
  const GoldenTensor* margins = golden.find(Phase::kRecompute, right.step, selection + ".margin");
  if (margins == nullptr || margins->rows != right.rows) return std::nullopt;
  const Values values = values_of(task);
  const int64_t chosen = right.value.sizes().back();
  std::optional<RouteMargins> found;
  task.plan.for_each_run([&](int64_t local, int64_t offset, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      const auto at = static_cast<size_t>(local + i);
      if (values.actual[at] == values.golden[at]) continue;
      const int64_t token = (offset + i) / chosen;
      const double margin = margins->value.data<double>()[token];
      if (!found) found = RouteMargins{token, margin, margin};
      if (token < found->token) *found = {token, margin, found->greatest};
      found->greatest = std::max(found->greatest, margin);
    }
  });
  if (!found) return std::nullopt;
  return *found;
}

// How many times too many the parts of side losses are in the gradient of a router's logits, if
// that explains it to the rounding.
std::optional<Evidence> look_at_side_losses(const DiffTask& task, const Values& now,
                                            const GoldenRecord& golden) {
  constexpr double kMostLeft = 8, kLeastPart = 32;  // allowances
  constexpr int64_t kFewest = 8;
  const GoldenTensor& right = task.golden;
  std::vector<std::vector<double>> parts;
  for (const char* kind : {".balance", ".z"}) {
    const GoldenTensor* part = golden.find(Phase::kRecompute, right.step, right.name + kind);
    const bool fits =
        part != nullptr && part->rows == right.rows && part->value.sizes() == right.value.sizes();
    parts.push_back(fits ? golden_values(task, *part) : std::vector<double>(now.golden.size(), 0));
    const bool shows = std::any_of(parts.back().begin(), parts.back().end(), [&](double value) {
      return std::fabs(value) > kLeastPart * now.allowance;
    });
    if (!shows) std::fill(parts.back().begin(), parts.back().end(), 0);
  }
  const std::vector<double>&balance = parts[0], &z = parts[1];
  double bb = 0, zz = 0, bz = 0, db = 0, dz = 0;  // sums of products
  int64_t wrong = 0;
  for (size_t i = 0; i < now.golden.size(); ++i) {
    const double beside = now.actual[i] - now.golden[i];
    wrong += std::fabs(beside) > now.allowance;
    bb += balance[i] * balance[i];
    zz += z[i] * z[i];
    bz += balance[i] * z[i];
    db += beside * balance[i];
    dz += beside * z[i];
  }
  if (wrong < kFewest || (bb == 0 && zz == 0)) return std::nullopt;
  const double both = bb * zz - bz * bz;
  if (bb > 0 && zz > 0 && both <= 1e-6 * bb * zz) return std::nullopt;  // one as good as the other
  const double of_balance = bb == 0 ? 0 : zz == 0 ? db / bb : (db * zz - dz * bz) / both;
  const double of_z = zz == 0 ? 0 : bb == 0 ? dz / zz : (dz * bb - db * bz) / both;
  for (size_t i = 0; i < now.golden.size(); ++i) {
    const double left = now.actual[i] - now.golden[i] - of_balance * balance[i] - of_z * z[i];
    if (!(std::fabs(left) <= kMostLeft * now.allowance)) return std::nullopt;
  }
  constexpr double kUnseen = std::numeric_limits<double>::quiet_NaN();
  return SideLossParts{bb == 0 ? kUnseen : 1 + of_balance, zz == 0 ? kUnseen : 1 + of_z};
}

// The golden's experts whose values the rank's wrong ones have; nothing unless each has another's.
std::optional<Evidence> look_at_experts(const DiffTask& task, const Values& now) {
  const GoldenTensor& right = task.golden;
  if (!is_of_experts(right.name, right.value.dim()) || task.plan.tokens != 0 ||
      !right.rows.empty()) {
    return std::nullopt;
  }
  const int64_t count = right.value.size(0), size = right.value.numel() / count;
  std::map<int64_t, std::vector<std::pair<size_t, int64_t>>> places;  // local, within the expert
  task.plan.for_each_run([&](int64_t local, int64_t offset, int64_t length) {
    for (int64_t i = 0; i < length; ++i) {
      places[(offset + i) / size].emplace_back(static_cast<size_t>(local + i), (offset + i) % size);
    }
  });
  const double* full = right.value.data<double>();
  const auto is_near = [&](double one, double other, double allowances) {
    return std::fabs(one - other) <= allowances * now.allowance;
  };
  OtherExperts found;
  for (const auto& [expert, held] : places) {
    const bool is_right = std::ranges::all_of(held, [&](const auto& place) {
      return is_near(now.actual[place.first], now.golden[place.first], 1);
    });
    if (is_right) continue;
    int64_t source = 0;
    for (; source < count; ++source) {
      const double* const other = full + source * size;
      const auto is_apart = [&](const auto& place) {
        const double value = task.scale * other[place.second];
        return value != 0 && !is_near(value, now.golden[place.first], kDistinctAllowances);
      };
      const auto is_its = [&](const auto& place) {
        return is_near(now.actual[place.first], task.scale * other[place.second], 1);
      };
      if (std::ranges::all_of(held, is_its) && std::ranges::count_if(held, is_apart) >= 2) {
        break;
      }
    }
    if (source == count) return std::nullopt;
    found.experts.push_back(expert);
    found.sources.push_back(source);
  }
  if (found.experts.empty()) return std::nullopt;
  return found;
}

}  // namespace

std::vector<Evidence> look_closer(const DiffTask& task, const GoldenRecord& golden,
                                  Precision precision) {
  std::vector<Evidence> found;
  const GoldenTensor& right = task.golden;
  if (const auto margins = look_at_margins(task, golden)) found.push_back(*margins);
  if (!is_floating(task.local.dtype()) || task.plan.count == 0) return found;
  const Values values = values_of(task);
  if (const auto* before = golden.find(right.phase, right.step - 1, right.name)) {
    if (auto evidence = look_at_step_before(task, *before, values)) found.push_back(*evidence);
  }
  // One number may equal another step's by chance. A learning rate may not: its schedule sets it.
  const GoldenTensor* next = task.plan.count > 1 || right.kind == ObservationKind::kRate
                                 ? next_of(right, golden)
                                 : nullptr;
  if (next && next->value.sizes() == right.value.sizes() && is_another(task, values, *next)) {
    found.push_back(EqualsStep{.step = next->step, .is_later = true});
  }
  if (const GoldenTensor* other = equal_tensor(task, values, golden)) {
    found.push_back(EqualsTensor{other->name});
  }
  if (precision == Precision::kFloat64) {
    if (const auto parts = look_at_side_losses(task, values, golden)) found.push_back(*parts);
    for (Evidence& fact : look_at_experts_of(task, values, golden))
      found.push_back(std::move(fact));
  }
  if (const auto others = look_at_experts(task, values)) found.push_back(*others);
  const std::string narrow = narrow_dtype(values, precision, task.local.dtype());
  if (!narrow.empty()) found.push_back(ValuesOf{narrow});
  const std::string before_sum =
      narrow.empty() && precision == Precision::kFloat64 ? dtype_of_addends(values) : "";
  if (!before_sum.empty()) found.push_back(AddendsThrough{before_sum});
  return found;
}

}  // namespace shardproof::sim::judge
