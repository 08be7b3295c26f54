#include "sim/judge/probe/census.h"

#include <algorithm>

#include "sim/case/record/sampled_rows.h"

namespace shardproof::sim::judge {
namespace {

bool holds(const std::vector<int64_t>& numbers, int64_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

// Logprobs are compared by step, and observed in each microbatch.
bool is_seen_in_each(Phase phase, ObservationKind kind) {
  return is_of_microbatch(phase, kind) || kind == ObservationKind::kLogprobs;
}

}  // namespace

bool is_of_microbatch(Phase phase, ObservationKind kind) {
  return phase == Phase::kBackward ||
         (phase == Phase::kForward && kind != ObservationKind::kLogprobs &&
          kind != ObservationKind::kLoss);
}

bool is_left_out(const CaseSpec& spec, const Observation& observation) {
  // Another layout that takes the golden's place has boundaries of its own.
  if (observation.kind == ObservationKind::kBoundary && spec.reference.is_set()) return true;
  return !spec.record_activations && is_of_microbatch(observation.phase, observation.kind);
}

Census::Census(const GoldenRecord& golden) : golden_(golden), seen_(golden.tensors().size()) {}

void Census::see(const Observation& observation, const GoldenTensor& golden) {
  if (observation.phase == Phase::kRecompute) return;
  std::vector<int64_t>& seen = seen_[static_cast<size_t>(golden.order)];
  if (!holds(seen, observation.microbatch)) seen.push_back(observation.microbatch);
  if (is_seen_in_each(golden.phase, golden.kind)) {
    microbatches_[golden.step].insert(observation.microbatch);
  }
}

std::vector<int64_t> Census::microbatches_without(const GoldenTensor& tensor) const {
  std::vector<int64_t> missing;
  const auto all = microbatches_.find(tensor.step);
  if (all == microbatches_.end() || !is_seen_in_each(tensor.phase, tensor.kind)) return missing;
  const std::vector<int64_t>& seen = seen_[static_cast<size_t>(tensor.order)];
  std::copy_if(all->second.begin(), all->second.end(), std::back_inserter(missing),
               [&](int64_t microbatch) { return !holds(seen, microbatch); });
  return missing;
}

std::vector<Unobserved> Census::unobserved() const {
  std::vector<Unobserved> found;
  for (const GoldenTensor& tensor : golden_.tensors()) {
    if (tensor.is_beside()) continue;
    const bool seen = !seen_[static_cast<size_t>(tensor.order)].empty();
    std::vector<int64_t> microbatches = microbatches_without(tensor);
    if (seen && microbatches.empty()) continue;
    found.push_back({tensor.order, tensor.phase, tensor.step, tensor.kind, tensor.name,
                     full_shape(tensor, tensor.value.sizes())});
    if (seen) found.back().microbatches = std::move(microbatches);
  }
  return found;
}

}  // namespace shardproof::sim::judge
