// Groups of ranks that communicate over sockets: LibTorch's ProcessGroupGloo.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/mesh_comm.h"
#include "comm/store.h"

namespace shardproof {

struct GlooSettings {
  std::chrono::milliseconds timeout{60'000};  // of making a group and of each call
  std::string host = "127.0.0.1";             // listens here; "": at this host's own name
};

// Returns a factory of this rank's end of each group. The members of a group meet in `store`, under
// a prefix of the group, and make the groups that they share in one order. The factory throws
// Error(kFailed, code "hung") when a member does not come within the time-out.
BackendFactory gloo_factory(StorePtr store, int64_t rank, GlooSettings settings = {});

}  // namespace shardproof
