// Groups of ranks that communicate through NCCL, one GPU each: a plugin that is loaded on demand.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "comm/mesh_comm.h"
#include "comm/store.h"

namespace shardproof {

struct NcclSettings {
  std::chrono::milliseconds timeout{60'000};
  int device_index = 0;     // this rank's GPU
  std::string plugin = "";  // path; "": libshardproof_nccl.so beside the running program
};

// Loads the plugin at once. Throws Error(kRefused) when there is no GPU, the plugin was not built
// (no CUDA toolkit at build time), or a library that it needs is missing.
BackendFactory nccl_factory(StorePtr store, int64_t rank, const NcclSettings& settings);
// The reason for which nccl_factory would throw; "": it would not.
std::string why_no_nccl(const NcclSettings& settings = {});

}  // namespace shardproof
