// A backend without communication: each collective is a copy of this rank's own data.
#pragma once

#include "comm/mesh_comm.h"

namespace shardproof::bench {

// Measures collectives that cost only memory traffic. The values are deliberately wrong: an
// all_reduce leaves the rank's addend, an all_gather repeats its part.
BackendFactory local_copies(int64_t rank);

}  // namespace shardproof::bench
