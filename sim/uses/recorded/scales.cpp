// How large the tensors of a reference are beside each other.
#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

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

// Of a phase and step, those of each kind of beside(), and of gradients alone; without scalars.
using AllSizes = std::map<std::tuple<Phase, int64_t, ObservationKind>, Sizes>;

AllSizes all_sizes(const std::vector<GoldenTensor>& tensors) {
  AllSizes sizes;
  for (const GoldenTensor& tensor : tensors) {
    if (tensor.value.dim() == 0 || is_optional_state(tensor.kind)) continue;
    sizes[{tensor.phase, tensor.step, beside(tensor.kind)}].insert(tensor.scale);
    if (tensor.kind != ObservationKind::kGradient) continue;
    sizes[{tensor.phase, tensor.step, tensor.kind}].insert(tensor.scale);
  }
  return sizes;
}

double phase_scale_in(AllSizes& all, const GoldenTensor& golden) {
  const ObservationKind kind = beside(golden.kind);
  const Sizes& sizes = all[{golden.phase, golden.step, kind}];
  const Sizes& gradients = all[{golden.phase, golden.step, ObservationKind::kGradient}];
  const double gradient = gradients.empty() ? 0 : *gradients.begin();
  if (kind == ObservationKind::kOutput) {
    const double scale = std::max(golden.scale, largest_beside(sizes, golden.scale));
    return golden.kind == ObservationKind::kGradient ? beside_gradient(scale, gradient) : scale;
  }
  return std::max({golden.scale, sizes.empty() ? 0 : *sizes.begin(),
                   kind == ObservationKind::kExpAvgSq ? gradient * gradient : gradient});
}

}  // namespace

void add_phase_scales(Reference& reference) {
  AllSizes sizes = all_sizes(reference.record.tensors());
  for (const GoldenTensor& tensor : reference.record.tensors())
    reference.phase_scales.push_back(phase_scale_in(sizes, tensor));
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
