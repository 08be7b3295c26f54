// At which calls a planted fault can act.
#pragma once

#include <cstdint>
#include <string_view>

#include "comm/communicator.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

// True when the fault names this call (op, axis, label, step) and can act at it on this rank: a
// contribution can be lost, doubled, spoilt or outdated only where the rank contributes something,
// doubled only in a sum, and an output spoilt only where the rank receives one.
bool concerns(const FaultSpec& fault, const Call& call, int64_t step);

// `pattern` occurs in `text`; * stands for any characters.
bool occurs_in(std::string_view text, std::string_view pattern);

}  // namespace shardproof::sim
