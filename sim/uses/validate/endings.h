// Ranks that did not finish a stage: whose fault it is that it ended.
#pragma once

#include <vector>

#include "sim/case/rank_ending.h"
#include "sim/uses/validate/finding.h"
#include "sim/uses/validate/hosts.h"

namespace shardproof::sim::validate {

// One finding for each kind of ending other than finished and aborted; none when all finished.
// `lost` is set when all ranks are as aborted: no world could be made for them.
std::vector<ValidationFinding> findings_of_endings(const std::vector<RankEnding>& endings,
                                                   Stage stage, int64_t round, const Hosts& hosts,
                                                   bool& lost);

// The hosts of ranks that died or hung. Others may have waited for them, thrown because they were
// gone, or been in a deadlock of which nobody knows the cause.
std::vector<int64_t> hosts_that_stopped(const std::vector<RankEnding>& endings, const Hosts& hosts);

}  // namespace shardproof::sim::validate
