// Whether a suite fits the ranks and hosts that are there.
#pragma once

#include <cstdint>
#include <optional>

#include "sim/uses/validate/suite.h"

namespace shardproof::sim::validate {

// Throws Error(kBadInput) for a mesh of another size, and for a fault on a rank or, where they are
// known, a host that is not there.
void check_fits(const Suite& suite, int64_t ranks, std::optional<int64_t> hosts);

}  // namespace shardproof::sim::validate
