// The calls at which a planted fault can act.
#pragma once

#include <cstdint>
#include <string_view>

#include "comm/communicator.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

// True if the fault names this call (op, axis, label, step) and can act on this rank: a
// contribution can be dropped, changed or stale only if the rank has one, and doubled only in a
// sum; an output can be changed only if the rank has one.
bool concerns(const FaultSpec& fault, const Call& call, int64_t step);

// Whether `pattern` occurs in `text`; * matches any characters.
bool occurs_in(std::string_view text, std::string_view pattern);

}  // namespace shardproof::sim
