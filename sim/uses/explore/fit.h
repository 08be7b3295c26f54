// Makes the sizes of a drawn case agree, so that most drawn cases can run: heads divide by the
// ranks that share them, samples by dp, and no mesh has more ranks than a drawn case may have.
#pragma once

#include <set>
#include <string>

#include "sim/uses/explore/scenario_text.h"

namespace shardproof::sim::explore {

inline constexpr int64_t kMostDrawnRanks = 16;

// Leaves the keys of `fixed` as they are. `usual`: the defaults of a registered workload's options,
// where they are known.
void fit_sizes(CaseSettings& settings, const std::set<std::string>& fixed,
               const nlohmann::json& usual = nlohmann::json::object());

// Whether the ranks refuse this whatever else is set: stages of a policy with experts below
// float64.
bool is_refused(const CaseSettings& settings);

}  // namespace shardproof::sim::explore
