// How large the tensors of a reference are beside each other.
#include <algorithm>

#include "sim/case/case_spec.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {
namespace {

using enum ObservationKind;

// The kind of what a tensor stands beside: gradients and each kind of state beside their own, as a
// moment of small gradients is far below any parameter; all others together.
ObservationKind beside(ObservationKind kind) {
  if (kind == kGradNorm) return kGradient;
  return kind == kGradient || (is_stepped(kind) && kind != kParameter) ? kind : kOutput;
}

}  // namespace

void add_scale(const GoldenTensor& tensor, Reference& reference) {
  if (tensor.value.dim() == 0 || is_optional_state(tensor.kind)) return;
  const ObservationKind kind = beside(tensor.kind);
  reference.scales[{tensor.phase, tensor.step, kind}].insert(tensor.scale);
  if (kind == kGradient)
    reference.scales[{tensor.phase, tensor.step, kOutput}].insert(tensor.scale);
}

double phase_scale_of(const Reference& reference, const GoldenTensor& golden) {
  const auto largest = [&](ObservationKind kind) {
    const auto found = reference.scales.find({golden.phase, golden.step, kind});
    return found == reference.scales.end() ? 0 : largest_beside(found->second, golden.scale);
  };
  const ObservationKind kind = beside(golden.kind);
  const double scale = std::max(golden.scale, largest(kind));
  if (kind == kOutput || kind == kGradient) return scale;
  const double gradient = largest(kGradient);
  return std::max(scale, kind == kExpAvgSq ? gradient * gradient : gradient);
}

double exact_allowance(const Reference& reference, const GoldenTensor& golden) {
  GoldenTensor judged = golden;
  judged.phase_scale = phase_scale_of(reference, golden);
  judged.scatter = 0;
  return judge::Tolerance(CaseSpec{}).allowance(judged);
}

}  // namespace shardproof::sim::recorded
