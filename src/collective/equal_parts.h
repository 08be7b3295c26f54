// Equal parts of a size over ranks. A size that does not divide throws Error(kRefused) with both
// numbers.
//
// Source: Megatron-LM utils.py; megatron/core/utils.py, divide.
#pragma once

#include <cstdint>
#include <string_view>

#include "comm/communicator.h"

namespace shardproof {

// value / parts. `what` names the value: "output_size 10 does not divide by the 4 ranks of tp".
int64_t divide(int64_t value, int64_t parts, std::string_view what, std::string_view axis = "tp");
int64_t divide(int64_t value, const Communicator& axis, std::string_view what);

}  // namespace shardproof
