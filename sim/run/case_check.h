// Checks one case for errors that can be found without tensors, before anything starts.
#pragma once

#include "sim/case/case_spec.h"

namespace shardproof::sim {

// Throws Error(kBadInput) for a config without sizes, a mesh that no model could run, and a custom
// plan that fits no model. Throws Error(kRefused) for an unsupported architecture. The ranks
// themselves refuse a model that their mesh cannot cut.
void check_case(const CaseSpec& spec);

}  // namespace shardproof::sim
