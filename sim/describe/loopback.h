// One rank of a mesh without its peers.
#pragma once

#include "comm/mesh_comm.h"

namespace shardproof::sim::describe {

// Groups in which every call ends at once. A reduction returns this rank's own addend, a gather its
// own piece in the place of every piece of that shape, an all-to-all its own input where it has the
// shape of the output. Other data that a peer would send are zeros.
// Shapes and numbers of calls are those of a run with peers, values are not. gather, scatter and
// barrier, which no training step makes, throw.
BackendFactory loopback_factory(int64_t rank);

}  // namespace shardproof::sim::describe
