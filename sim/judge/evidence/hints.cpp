#include "sim/judge/evidence/hints.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>
#include <set>

#include "sim/judge/evidence/explained.h"

namespace shardproof::sim {
namespace {

constexpr int kLargestSearch = 256;  // golden tensors that are tried

DiffTask against(const DiffTask& task, const GoldenTensor& other) {
  return {task.local, other, task.plan, task.scale, task.allowance};
}

bool matches_other(const DiffTask& task, const GoldenTensor& other) {
  return diff(against(task, other)).bad_count == 0;
}

// The tensor of this name in the golden's next step that has one; null: there is none.
const GoldenTensor* next_of(const GoldenTensor& tensor, const GoldenRecord& golden) {
  const GoldenTensor* next = nullptr;
  for (const GoldenTensor& other : golden.tensors()) {
    if (other.name != tensor.name || other.phase != tensor.phase || other.step <= tensor.step) {
      continue;
    }
    if (!next || other.step < next->step) next = &other;
  }
  return next;
}

struct Values {
  std::vector<double> actual, golden;
};

Values values_of(const DiffTask& task) {
  Values out;
  copy_both(task, out.actual, out.golden);
  return out;
}

// Whether all that is wrong, two elements or more, equals the elements of `then` there.
bool wrong_part_equals(const Values& now, const std::vector<double>& then, double allowance) {
  int64_t wrong = 0;
  for (size_t i = 0; i < now.actual.size(); ++i) {
    if (std::fabs(now.actual[i] - now.golden[i]) <= allowance) continue;
    if (!(std::fabs(now.actual[i] - then[i]) <= allowance)) return false;
    ++wrong;
  }
  return wrong >= 2;
}

// Whether all elements, of which two or more are wrong, are the golden's and `then` added up.
bool is_sum_with(const Values& now, const std::vector<double>& then, double allowance) {
  int64_t wrong = 0;
  for (size_t i = 0; i < now.actual.size(); ++i) {
    const double beside = now.actual[i] - now.golden[i];
    if (!(std::fabs(beside - then[i]) <= 2 * allowance)) return false;
    wrong += std::fabs(beside) > allowance;
  }
  return wrong >= 2;
}

// What a weight's update since `then` is of the golden's, where one factor explains it; 1: nothing.
double share_of_update(const Values& now, const std::vector<double>& then) {
  constexpr size_t kFewest = 16;
  double both = 0, due = 0;
  for (size_t i = 0; i < now.actual.size(); ++i) {
    const double update = now.golden[i] - then[i];
    both += (now.actual[i] - then[i]) * update;
    due += update * update;
  }
  if (now.actual.size() < kFewest || !(due > 0)) return 1;
  const double share = both / due;
  double left = 0, difference = 0;
  for (size_t i = 0; i < now.actual.size(); ++i) {
    const double proposed = then[i] + share * (now.golden[i] - then[i]);
    left += (now.actual[i] - proposed) * (now.actual[i] - proposed);
    difference += (now.actual[i] - now.golden[i]) * (now.actual[i] - now.golden[i]);
  }
  return left <= (1 - kLeastExplained) * difference ? share : 1;
}

// What the same tensor of the step before explains; "" nothing.
std::string hint_of_step_before(const DiffTask& task, const GoldenTensor& before,
                                const Values& now) {
  const GoldenTensor& right = task.golden;
  if (before.value.sizes() != right.value.sizes()) return "";
  if (matches_other(task, before)) {
    return fmt::format("equals the golden of step {}: stale, it was not updated", before.step);
  }
  const std::vector<double> then = values_of(against(task, before)).golden;
  const double allowance = std::fabs(task.scale) * task.allowance;
  if (wrong_part_equals(now, then, allowance)) {
    return fmt::format(
        "equals the golden of step {} wherever it is wrong: a part is stale, it was not updated",
        before.step);
  }
  if (is_sum_with(now, then, allowance)) {
    return fmt::format("is the golden of steps {} and {} added up: it was not reset between them",
                       before.step, right.step);
  }
  const double share = right.name.starts_with("param.") ? share_of_update(now, then) : 1;
  if (share == 1) return "";
  return fmt::format("moved by {:.3g} of the golden's update: a rate or a bias correction is wrong",
                     share);
}

template <class Narrow>
double rounded(double value) {
  return static_cast<double>(static_cast<Narrow>(value));
}

// Whether every actual value is one of `Narrow`, which the golden's are not, and as near to the
// golden as rounding leaves it: `roundings` of them at the most.
template <class Narrow>
bool only_values_of(const Values& values, double eps, double roundings) {
  bool golden_too = true;
  double error = 0, size = 0;
  for (size_t i = 0; i < values.actual.size(); ++i) {
    const double actual = values.actual[i], golden = values.golden[i];
    if (!std::isfinite(actual) || rounded<Narrow>(actual) != actual) return false;
    golden_too = golden_too && rounded<Narrow>(golden) == golden;
    error += (actual - golden) * (actual - golden);
    size += golden * golden;
  }
  return !golden_too && error <= roundings * roundings * eps * eps * size;
}

// The narrower dtype whose values these all are; "" none.
const char* narrow_dtype(const Values& values, const std::string& precision) {
  if (precision == "bfloat16") return "";
  constexpr double kRoundings = 64;
  if (only_values_of<c10::BFloat16>(values, 0x1p-8, kRoundings)) return "bfloat16";
  if (only_values_of<c10::Half>(values, 0x1p-11, kRoundings)) return "float16";
  if (precision == "float32") return "";
  return only_values_of<float>(values, 0x1p-24, 1024) ? "float32" : "";
}

// The narrow dtype through which the addends of sums went, told by its error: nearly all sums of a
// few short numbers are float32 numbers, which no sum of float64 values is by chance. "" none.
const char* dtype_of_addends(const Values& values) {
  constexpr size_t kFewest = 8;
  size_t short_ones = 0;
  double error = 0, size = 0;
  for (size_t i = 0; i < values.actual.size(); ++i) {
    const double actual = values.actual[i], golden = values.golden[i];
    if (!std::isfinite(actual)) return "";
    short_ones += rounded<float>(actual) == actual && rounded<float>(golden) != golden;
    error += (actual - golden) * (actual - golden);
    size += golden * golden;
  }
  if (short_ones < kFewest || 100 * short_ones < 99 * values.actual.size()) return "";
  const double relative = std::sqrt(error / size);  // of one rounding at most 2^-9, 2^-12
  if (relative > 0x1p-12 && relative < 0x1p-8) return "bfloat16";
  return relative > 0x1p-16 && relative < 0x1p-12 ? "float16" : "";
}

template <class Narrow>
bool holds_only(const at::Tensor& values) {
  std::set<float> different;
  const float* data = values.const_data_ptr<float>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    if (static_cast<float>(static_cast<Narrow>(data[i])) != data[i]) return false;
    if (data[i] != 0) different.insert(data[i]);
  }
  return different.size() >= 8;
}

}  // namespace

std::string rounded_through(const at::Tensor& values, const std::string& precision) {
  if (values.scalar_type() != at::kFloat) return "";
  const bool narrow = (precision == "bfloat16" && holds_only<c10::BFloat16>(values)) ||
                      (precision == "float16" && holds_only<c10::Half>(values));
  if (!narrow) return "";
  return "every value is exactly a " + precision +
         ", where float32 is due: it was rounded through a narrower dtype";
}

std::vector<std::string> hints_for(const DiffTask& task, const GoldenRecord& golden,
                                   const std::string& precision) {
  std::vector<std::string> hints;
  const GoldenTensor& right = task.golden;
  if (!at::isFloatingType(task.local.scalar_type()) || task.plan.count == 0) return hints;
  const Values values = values_of(task);
  if (const auto* before = golden.find(right.phase, right.step - 1, right.name)) {
    const std::string hint = hint_of_step_before(task, *before, values);
    if (!hint.empty()) hints.push_back(hint);
  }
  // One number may be another step's by chance. Not a learning rate: it is read from its schedule.
  const GoldenTensor* next =
      task.plan.count > 1 || right.name == "lr" ? next_of(right, golden) : nullptr;
  if (next && next->value.sizes() == right.value.sizes() && matches_other(task, *next)) {
    hints.push_back(fmt::format(
        "equals the golden of step {}: ahead of its time, it was moved on too early", next->step));
  }
  int tried = 0;
  for (const GoldenTensor& other : golden.tensors()) {
    if (task.plan.count < 2 || tried >= kLargestSearch) break;
    if (&other == &right || other.phase != right.phase || other.step != right.step ||
        other.value.sizes() != right.value.sizes() || other.value.scalar_type() != at::kDouble ||
        other.scale == 0) {
      continue;
    }
    ++tried;
    if (!matches_other(task, other)) continue;
    hints.push_back("equals the golden's " + other.name);
    break;
  }
  const std::string narrow = narrow_dtype(values, precision);
  if (!narrow.empty()) hints.push_back("every value is exactly a " + narrow);
  const std::string before_sum =
      narrow.empty() && precision == "float64" ? dtype_of_addends(values) : "";
  if (!before_sum.empty()) {
    hints.push_back("every value is exactly a float32, and off by as much as " + before_sum +
                    " rounds: its addends went through " + before_sum);
  }
  return hints;
}

}  // namespace shardproof::sim
