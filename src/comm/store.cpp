#include "comm/store.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

namespace shardproof {

StorePtr make_hash_store() { return c10::make_intrusive<c10d::HashStore>(); }

StorePtr with_prefix(const StorePtr& store, const std::string& prefix) {
  return c10::make_intrusive<c10d::PrefixStore>(prefix, store);
}

}  // namespace shardproof
