// Checks one case for errors that can be found without tensors, before anything starts.
#pragma once

#include <string>
#include <vector>

#include "sim/case/case_spec.h"

namespace shardproof::sim::run {

// Throws Error(kBadInput) for a config without sizes (with line and column, where it is a file), a
// mesh that no model could run, and a custom plan that fits no model. Throws Error(kRefused) for an
// unsupported architecture. The ranks themselves refuse a model that their mesh cannot cut.
void check_case(const CaseSpec& spec);

// One line that lists the keys of the case's config.json which nothing reads; "" when there are
// none.
std::string unread_keys_note(const CaseSpec& spec);
// The notes of all configs, each once.
std::string unread_keys_notes(const std::vector<CaseSpec>& cases);

}  // namespace shardproof::sim::run
