// Groups of ranks that talk over sockets: LibTorch's ProcessGroupGloo.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/mesh_comm.h"
#include "comm/store.h"

namespace shardproof {

struct GlooSettings {
  std::chrono::milliseconds timeout{60'000};  // of making a group and of each call
  std::string host = "127.0.0.1";             // the address to listen on; "": this host's own name
};

// Makes this rank's end of each group; all members meet in `store`, each group under a prefix of
// its own. Members make their common groups in the same order. Throws Error(kFailed, code "hung")
// when a member does not come within the time-out.
BackendFactory gloo_factory(StorePtr store, int64_t rank, GlooSettings settings = {});

}  // namespace shardproof
