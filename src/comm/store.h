// c10d's key-value stores, in which the ranks of a world find each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace c10d {
class Store;
}

namespace shardproof {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Shared by threads of one process.
StorePtr make_hash_store();
// The same store, with all keys under `prefix`.
StorePtr with_prefix(const StorePtr& store, const std::string& prefix);

}  // namespace shardproof
