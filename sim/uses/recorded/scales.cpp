// How large the tensors of a reference are beside each other.
#include <algorithm>

#include "sim/case/case_spec.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {
namespace {

// A moment of small gradients is far below any parameter: moments stand beside their own kind, and
// beside gradients.
std::tuple<Phase, int64_t, ObservationKind> beside(const GoldenTensor& tensor) {
  const bool is_state = is_stepped(tensor.kind) && tensor.kind != ObservationKind::kParameter;
  return {tensor.phase, tensor.step, is_state ? tensor.kind : ObservationKind::kOutput};
}

}  // namespace

void add_scale(const GoldenTensor& tensor, Reference& reference) {
  if (tensor.value.dim() == 0 || is_optional_state(tensor.kind)) return;
  double& scale = reference.scales[beside(tensor)];
  scale = std::max(scale, tensor.scale);
  if (tensor.kind != ObservationKind::kGradient) return;
  double& of_gradients = reference.scales[{tensor.phase, tensor.step, tensor.kind}];
  of_gradients = std::max(of_gradients, tensor.scale);
}

double phase_scale_of(const Reference& reference, const GoldenTensor& golden) {
  const auto largest = [&](const auto& key) {
    const auto found = reference.scales.find(key);
    return found == reference.scales.end() ? 0 : found->second;
  };
  const auto key = beside(golden);
  const double scale = std::max(golden.scale, largest(key));
  if (std::get<2>(key) == ObservationKind::kOutput) return scale;
  const double gradient =
      largest(std::tuple(golden.phase, golden.step, ObservationKind::kGradient));
  const bool squares = golden.kind == ObservationKind::kExpAvgSq;
  return std::max(scale, squares ? gradient * gradient : gradient);
}

double exact_allowance(const Reference& reference, const GoldenTensor& golden) {
  GoldenTensor judged = golden;
  judged.phase_scale = phase_scale_of(reference, golden);
  judged.scatter = 0;
  return judge::Tolerance(CaseSpec{}).allowance(judged);
}

}  // namespace shardproof::sim::recorded
