// The function by which the program calls its NCCL plugin. Both are built from the same tree.
#pragma once

#include <chrono>
#include <string>

#include "comm/store.h"

namespace c10d {
class Backend;
}

namespace shardproof {

struct NcclGroup {
  StorePtr store;  // under the group's own prefix
  int rank;
  int size;
  int device_index;
  std::chrono::milliseconds timeout;
  std::string name;
};

using MakeNccl = c10::intrusive_ptr<c10d::Backend>(const NcclGroup& group);
inline constexpr const char* kNcclEntryName = "shardproof_make_nccl";

}  // namespace shardproof
