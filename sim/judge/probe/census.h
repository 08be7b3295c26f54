// What one rank observed of the golden's tensors: not seen is not right.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "observe/probe.h"
#include "sim/case/case_spec.h"
#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/result_row.h"

namespace shardproof::sim::judge {

// Whether a tensor is made in each microbatch: the outputs of slots and the gradients at them. The
// logprobs and the loss are of a step.
bool is_of_microbatch(Phase phase, ObservationKind kind);

// Whether a run of the case passes over what a rank observed, so that nothing misses it.
bool is_left_out(const CaseSpec& spec, const Observation& observation);

class Census {
 public:
  // `golden` must outlive the census.
  explicit Census(const GoldenRecord& golden);
  void see(const Observation& observation, const GoldenTensor& golden);
  // The golden's tensors that were not seen, and those that were missing in a microbatch in which
  // the rank observed other tensors of the step, forward or backward.
  std::vector<Unobserved> unobserved() const;

 private:
  std::vector<int64_t> microbatches_without(const GoldenTensor& tensor) const;

  const GoldenRecord& golden_;
  std::vector<std::vector<int64_t>> seen_;  // by order of the golden: in which microbatches
  std::map<int64_t, std::set<int64_t>> microbatches_;  // of each step
};

}  // namespace shardproof::sim::judge
