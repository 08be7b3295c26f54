// What is wrong with one case and can be seen without tensors, before anything is started.
#pragma once

#include "sim/case/case_spec.h"

namespace shardproof::sim {

// Throws Error(kBadInput): a config without sizes, a mesh that no model could run, a custom plan
// that fits no model, more parameters than this machine's memory holds. Error(kRefused): an
// architecture that is not supported. What a mesh cannot cut is for the ranks to refuse.
void check_case(const CaseSpec& spec);

}  // namespace shardproof::sim
