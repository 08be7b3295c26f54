// How large the tensors of a reference are beside each other.
#include <algorithm>

#include "sim/case/case_spec.h"
#include "sim/judge/diff/tolerance.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {
void add_phase_scales(Reference& reference) {
  GoldenScales scales;
  for (const GoldenTensor& tensor : reference.record.tensors()) {
    const bool is_scalar = tensor.value.dim() == 0 || is_optional_state(tensor.kind);
    if (!is_scalar) scales.add(tensor, /*finite=*/true);
  }
  for (const GoldenTensor& tensor : reference.record.tensors()) {
    reference.phase_scales.push_back(std::max(tensor.scale, scales.of_phase(tensor)));
  }
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
