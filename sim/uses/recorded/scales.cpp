// How large the tensors of a reference are beside each other.
#include <algorithm>

#include "sim/case/case_spec.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {
namespace {

// The kind of what a tensor stands beside: each kind of state beside its own, as a moment of small
// gradients is far below any parameter; all others together.
ObservationKind beside(ObservationKind kind) {
  return is_stepped(kind) && kind != ObservationKind::kParameter ? kind : ObservationKind::kOutput;
}

const Sizes& sizes_of(const Reference& reference, const GoldenTensor& golden,
                      ObservationKind kind) {
  static const Sizes kNone;
  const auto found = reference.scales.find({golden.phase, golden.step, kind});
  return found == reference.scales.end() ? kNone : found->second;
}

double compute_phase_scale(const Reference& reference, const GoldenTensor& golden) {
  const ObservationKind kind = beside(golden.kind);
  const Sizes& sizes = sizes_of(reference, golden, kind);
  if (kind == ObservationKind::kOutput)
    return std::max(golden.scale, largest_beside(sizes, golden.scale));
  const Sizes& gradients = sizes_of(reference, golden, ObservationKind::kGradient);
  const double gradient = gradients.empty() ? 0 : *gradients.begin();
  return std::max({golden.scale, sizes.empty() ? 0 : *sizes.begin(),
                   kind == ObservationKind::kExpAvgSq ? gradient * gradient : gradient});
}

}  // namespace

void add_scales(Reference& reference) {
  for (const GoldenTensor& tensor : reference.record.tensors()) {
    if (tensor.value.dim() == 0 || is_optional_state(tensor.kind)) continue;
    reference.scales[{tensor.phase, tensor.step, beside(tensor.kind)}].insert(tensor.scale);
    if (tensor.kind == ObservationKind::kGradient)
      reference.scales[{tensor.phase, tensor.step, ObservationKind::kGradient}].insert(
          tensor.scale);
  }
  for (const GoldenTensor& tensor : reference.record.tensors())
    reference.phase_scales.push_back(compute_phase_scale(reference, tensor));
}

double phase_scale_of(const Reference& reference, const GoldenTensor& golden) {
  return reference.phase_scales.at(static_cast<size_t>(golden.order));
}

double exact_allowance(const Reference& reference, const GoldenTensor& golden) {
  GoldenTensor judged = golden;
  judged.phase_scale = phase_scale_of(reference, golden);
  judged.scatter = 0;
  return judge::Tolerance(CaseSpec{}).allowance(judged);
}

}  // namespace shardproof::sim::recorded
