// One factor over all elements: scaled by the size of an axis, its inverse, or its root.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/judge/explain/diagnose.h"

namespace shardproof::sim {

// The cause given for an exact factor that has no meaning.
inline constexpr const char* kNoMeaning = "a scale is wrong that is no size of the mesh";

// Exactly one factor on all wrong ranks, whatever it is; or nearly one that has a meaning on this
// mesh and explains the difference. Scalars fit any factor: only one with a meaning counts there.
std::optional<Explanation> explain_factor(const Symptoms& symptoms,
                                          const std::vector<const ResultRow*>& wrong,
                                          const std::string& on_which_ranks);

}  // namespace shardproof::sim
