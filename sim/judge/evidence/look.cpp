#include "sim/judge/evidence/look.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "sim/judge/evidence/explained.h"

namespace shardproof::sim::judge {
namespace {

constexpr int kLargestSearch = 256;  // at most so many golden tensors are tried

DiffTask against(const DiffTask& task, const GoldenTensor& other) {
  return {task.local, other, task.plan, task.scale, task.allowance};
}

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

struct Values {
  std::vector<double> actual, golden;
  double allowance = 0;
};

Values values_of(const DiffTask& task) {
  Values out;
  copy_both(task, out.actual, out.golden);
  out.allowance = std::fabs(task.scale) * task.allowance;
  return out;
}

// Whether at least two elements (one, if there is only one) distinguish `other` from the golden.
bool are_told_apart(const Values& now, const std::vector<double>& other) {
  size_t apart = 0;
  for (size_t i = 0; i < now.golden.size(); ++i) {
    apart += !(std::fabs(other[i] - now.golden[i]) <= kToldApart * now.allowance);
  }
  return apart >= std::min<size_t>(2, now.golden.size());
}

std::vector<double> golden_values(const DiffTask& task, const GoldenTensor& other) {
  return values_of(against(task, other)).golden;
}

// Whether the whole tensor equals `other` and is clearly distinct from its own golden.
bool is_another(const DiffTask& task, const Values& now, const GoldenTensor& other) {
  return matches_other(task, other) && are_told_apart(now, golden_values(task, other));
}

// Whether all wrong elements equal those of `then`, and two of them clearly.
bool wrong_part_equals(const Values& now, const std::vector<double>& then) {
  int64_t apart = 0;
  for (size_t i = 0; i < now.actual.size(); ++i) {
    if (std::fabs(now.actual[i] - now.golden[i]) <= now.allowance) continue;
    if (!(std::fabs(now.actual[i] - then[i]) <= now.allowance)) return false;
    apart += std::fabs(then[i] - now.golden[i]) > kToldApart * now.allowance;
  }
  return apart >= 2;
}

// Whether all elements equal the golden plus `then`, and two of them clearly.
bool is_sum_with(const Values& now, const std::vector<double>& then) {
  int64_t apart = 0;
  for (size_t i = 0; i < now.actual.size(); ++i) {
    const double beside = now.actual[i] - now.golden[i];
    if (!(std::fabs(beside - then[i]) <= 2 * now.allowance)) return false;
    apart += std::fabs(beside) > kToldApart * now.allowance;
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
  if (!are_told_apart(now, then)) return std::nullopt;
  if (matches_other(task, before)) return EqualsStep{.step = before.step};
  if (wrong_part_equals(now, then)) return PartEqualsStep{before.step};
  if (is_sum_with(now, then)) return SumOfSteps{before.step, right.step};
  if (right.kind != ObservationKind::kParameter) return std::nullopt;
  const std::optional<double> share = share_of_update(now, then);
  if (!share) return std::nullopt;
  return ShareOfUpdate{*share};
}

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
  return !golden_too && error <= roundings * roundings * eps * eps * size;
}

// The narrower dtype that represents all these values; "" when there is none.
const char* narrow_dtype(const Values& values, Precision precision) {
  if (precision == Precision::kBFloat16) return "";
  constexpr double kRoundings = 64;
  if (only_narrow_values(values, is_bfloat16, 0x1p-8, kRoundings)) return "bfloat16";
  if (only_narrow_values(values, is_float16, 0x1p-11, kRoundings)) return "float16";
  if (precision == Precision::kFloat32) return "";
  return only_narrow_values(values, is_float32, 0x1p-24, 1024) ? "float32" : "";
}

// The narrow dtype through which the addends of the sums went, by the size of the error; "" for
// none. Nearly all sums of a few short numbers are float32 values, unlike sums of float64 values.
const char* dtype_of_addends(const Values& values) {
  constexpr size_t kFewest = 8;
  size_t short_ones = 0;
  double error = 0, size = 0;
  for (size_t i = 0; i < values.actual.size(); ++i) {
    const double actual = values.actual[i], golden = values.golden[i];
    if (!std::isfinite(actual)) return "";
    short_ones += is_float32(actual) && !is_float32(golden);
    error += (actual - golden) * (actual - golden);
    size += golden * golden;
  }
  if (short_ones < kFewest || 100 * short_ones < 99 * values.actual.size()) return "";
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

}  // namespace

std::vector<Evidence> look_closer(const DiffTask& task, const GoldenRecord& golden,
                                  Precision precision) {
  std::vector<Evidence> found;
  const GoldenTensor& right = task.golden;
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
  const std::string narrow = narrow_dtype(values, precision);
  if (!narrow.empty()) found.push_back(ValuesOf{narrow});
  const std::string before_sum =
      narrow.empty() && precision == Precision::kFloat64 ? dtype_of_addends(values) : "";
  if (!before_sum.empty()) found.push_back(AddendsThrough{before_sum});
  return found;
}

}  // namespace shardproof::sim::judge
