// A backend that talks to nobody: each collective is a copy of this rank's own data.
#pragma once

#include "comm/mesh_comm.h"

namespace shardproof::bench {

// What a collective costs when it costs nothing but memory traffic. The values are wrong on
// purpose: an all_reduce leaves the rank's addend, an all_gather repeats its part.
BackendFactory local_copies(int64_t rank);

}  // namespace shardproof::bench
