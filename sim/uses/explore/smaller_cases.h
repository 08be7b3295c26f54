// The cases that are by one edit smaller than a case.
#pragma once

#include <string>
#include <vector>

#include "sim/case/scenario/known_workload.h"
#include "sim/uses/explore/scenario_text.h"

namespace shardproof::sim::explore {

// One change of a case: a JSON merge patch, in which null takes a key out.
struct Edit {
  std::string what;  // "parallel.tensor_parallel_size: 2"
  nlohmann::json patch;
};

// How far a case is from the smallest one: sizes count by their logarithms, those of the mesh,
// layers and steps more; then settings that are given, records and their attributes.
double size_of(const CaseSettings& settings);

// Every edit that makes the case smaller, the largest effect first.
// `options`: those of a registered workload.
std::vector<Edit> smaller_cases(const CaseSettings& settings, const WorkloadOptions& options = {});

CaseSettings edited(const CaseSettings& settings, const Edit& edit);

// Without any axis of the mesh, then without each of several.
std::vector<Edit> edits_without_axes(const CaseSettings& settings,
                                     const WorkloadOptions& options = {});

// The first edits as one; where two change the same key, the first does.
Edit joined(const std::vector<Edit>& edits, size_t count);

}  // namespace shardproof::sim::explore
