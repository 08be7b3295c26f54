#include "sim/compare/hints.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <cmath>

namespace shardproof::sim {
namespace {

constexpr int kLargestSearch = 256;  // golden tensors that are tried

bool matches_other(const DiffTask& task, const GoldenTensor& other) {
  DiffTask retry{task.local, other, task.plan, task.scale, task.allowance};
  return diff(retry).bad_count == 0;
}

// Whether rounding through `Narrow` changes none of the actual values, but some of the golden ones.
template <class Narrow>
bool only_values_of(const std::vector<double>& actual, const std::vector<double>& golden) {
  bool golden_too = true;
  for (size_t i = 0; i < actual.size(); ++i) {
    if (!std::isfinite(actual[i])) return false;
    if (static_cast<double>(static_cast<Narrow>(actual[i])) != actual[i]) return false;
    golden_too = golden_too && static_cast<double>(static_cast<Narrow>(golden[i])) == golden[i];
  }
  return !golden_too;
}

}  // namespace

std::vector<std::string> hints_for(const DiffTask& task, const GoldenRecord& golden,
                                   const std::string& precision) {
  std::vector<std::string> hints;
  const GoldenTensor& right = task.golden;
  if (!at::isFloatingType(task.local.scalar_type()) || task.plan.count == 0) return hints;
  const GoldenTensor* before = golden.find(right.phase, right.step - 1, right.name);
  if (before && before->value.sizes() == right.value.sizes() && matches_other(task, *before)) {
    hints.push_back(
        fmt::format("equals the golden of step {}: stale, it was not updated", right.step - 1));
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
  if (precision != "float64") return hints;
  std::vector<double> actual, expected;
  copy_both(task, actual, expected);
  if (only_values_of<c10::BFloat16>(actual, expected)) {
    hints.push_back("every value is exactly a bfloat16");
  } else if (only_values_of<c10::Half>(actual, expected)) {
    hints.push_back("every value is exactly a float16");
  } else if (only_values_of<float>(actual, expected)) {
    hints.push_back("every value is exactly a float32");
  }
  return hints;
}

}  // namespace shardproof::sim
