// How the stage `times` measures.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "sim/uses/validate/times.h"
#include "sim/uses/validate/validate_rank.h"

namespace shardproof::sim::validate {

// Runs a part of the pairings on the ranks. The members' reports by process; none where one did not
// finish.
using RunPart = std::function<std::map<int64_t, StageReport>(const PairingsPart& part)>;

// The first pairings are measured briefly, and again where a rank is surely slow; then all of them,
// without ranks that are so every time. With a factor (not 0), what is slow by that factor is then
// measured up to twice more while the other pairs are silent. The better values count, so that a
// host is named only for what is slow every time. Nothing where a part has no reports.
std::optional<Times> measure_times(const Hosts& hosts, const std::vector<int64_t>& members,
                                   const std::vector<int64_t>& pairings, double factor,
                                   const RunPart& run);

// The values of so many ranks, with the median in the place of those that are not known.
std::vector<double> by_rank(const std::map<int64_t, double>& known, int64_t ranks);

}  // namespace shardproof::sim::validate
