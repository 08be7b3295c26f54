// From a judged case to what its planted faults did and who saw it.
#pragma once

#include <string>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim {

// Needs verdict, kind, divergence, endings and reports of `result`. Works for cases without faults
// too: who saw the mismatch.
FaultOutcome fault_outcome(const CaseResult& result);

// "values", "none" when nobody saw anything.
std::string first_detector(const FaultOutcome& outcome);
// "values at step 1 (lm_head.output), then norm at step 1 (grad_norm)", "none".
std::string detectors_text(const FaultOutcome& outcome);
// A sentence per fault that did not act, "" when all did or when the ranks never ran the case: a
// scenario that plants what never happens shows nothing.
std::string faults_that_never_fired(const CaseResult& result);
// What was planted, who saw it, what it did to the gradients; "" without faults.
std::string faults_text(const CaseResult& result);

}  // namespace shardproof::sim
