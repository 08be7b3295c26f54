// The transports of collective calls. Each c10d backend is called by one of these names.
#pragma once

#include <array>

#include "base/enum_names.h"

namespace shardproof {

enum class Backend { kEmulated, kGloo, kNccl };
constexpr std::array<const char*, 3> names_of(Backend) { return {"emulated", "gloo", "nccl"}; }

}  // namespace shardproof
