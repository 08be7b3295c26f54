// Derives the effect of planted faults, and the detectors that saw them, from a judged case.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::judge {

// `result` needs verdict, kind, divergence, endings and reports. Without faults the outcome has the
// detectors that saw the mismatch.
FaultOutcome fault_outcome(const CaseResult& result);

// For example "values"; "none" when no detector saw anything.
std::string first_detector(const FaultOutcome& outcome);
// For example "values at step 1 (lm_head.output), then norm at step 1 (grad_norm)"; or "none".
std::string detectors_text(const FaultOutcome& outcome);
// One sentence per fault that never acted, since such a scenario shows nothing. Returns "" when all
// faults acted, and when the ranks never ran the case.
std::string faults_that_never_fired(const CaseResult& result);
// The planted faults, the detectors that saw them, and the effect on gradients; "" without faults.
std::string faults_text(const CaseResult& result);

}  // namespace shardproof::sim::judge
