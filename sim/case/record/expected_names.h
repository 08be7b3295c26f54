// The tensor names in the files of full tensors that a run writes: those of expected.safetensors
// (docs/cases.md), and those of a policy's moments (sim/case/policy_stages.h).
//
//   steps     logprobs, loss, grad.<parameter>, grad_norm     of the first step, or of scoring
//             step<k>.loss, step<k>.grad_norm                 of every step, from 1
//             step<n>.param.<parameter>                       after the last one
//   moments   step<m>.logprobs, .loss, .grad.<parameter>, .grad_norm, .scores, .reference_scores,
//              .param.<parameter>                              those that moment m observes
//
// A refit sends the values that step<m>.param has before it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "observe/observation_kind.h"

namespace shardproof::sim {

// Returns zero, one or two names ("loss" and "step1.loss"). `steps` is the number of steps of the
// run; parameters have a name only after the last. Step 0 is scoring.
std::vector<std::string> expected_names_of(ObservationKind kind, const std::string& observed,
                                           int64_t step, int64_t steps);

// The names of a tensor that moment `moment` of a policy observed; empty when the file has none.
std::vector<std::string> moment_names_of(ObservationKind kind, const std::string& observed,
                                         int64_t moment);

}  // namespace shardproof::sim
