// The same difference on every row: a vector added once too often, or left out.
#pragma once

#include <optional>

#include "sim/judge/explain/assembled.h"
#include "sim/judge/explain/diagnose.h"

namespace shardproof::sim {

// actual - golden is one vector along the last dim, repeated over all others.
std::optional<Explanation> explain_offset(const Assembled& tensor);

}  // namespace shardproof::sim
