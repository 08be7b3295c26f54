// The names of tensors in the files that a run's full tensors are written to: those of
// expected.safetensors (docs/cases.md), and the same of a policy's life.
//
//   steps     logprobs, loss, grad.<parameter>, grad_norm     of the first step, or of scoring
//             step<k>.loss, step<k>.grad_norm                 of every step, from 1
//             step<n>.param.<parameter>                       after the last one
//   moments   step<m>.logprobs, .loss, .grad.<parameter>, .grad_norm, .scores, .reference_scores,
//             .param.<parameter>                              all that moment m observes of them
//
// Moments: sim/case/policy_stages.h. What a refit sends is what step<m>.param has before it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::sim {

// None, one or two names ("loss" and "step1.loss"). `steps`: of the run; parameters count only
// after the last one. Step 0 is scoring.
std::vector<std::string> expected_names_of(const std::string& observed, int64_t step,
                                           int64_t steps);

// The name of what moment `moment` of a policy's life observed; none that the file has not.
std::vector<std::string> moment_names_of(const std::string& observed, int64_t moment);

}  // namespace shardproof::sim
