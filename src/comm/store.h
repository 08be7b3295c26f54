// Where the ranks of a world find each other: c10d's key-value stores.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <string>

namespace c10d {
class Store;
}

namespace shardproof {

using StorePtr = c10::intrusive_ptr<c10d::Store>;

// Threads of one process.
StorePtr make_hash_store();
// Processes of one host (or over a shared file system). The file must be new.
StorePtr make_file_store(const std::string& path, int64_t world_size);
// Any hosts. Rank 0 of the world hosts it (`host_it`), unless a launcher such as torchrun already
// does; the others join as clients. Throws Error(kFailed): no connection within the time-out.
StorePtr make_tcp_store(const std::string& host, uint16_t port, bool host_it, int64_t world_size,
                        std::chrono::milliseconds timeout);
// The same store, all keys under `prefix`.
StorePtr with_prefix(const StorePtr& store, const std::string& prefix);

// LibTorch's own log lines about stores and sockets (with C++ stack traces) off, process-wide: what
// they say comes back as Errors. main() calls it once.
void quiet_torch_logs();

}  // namespace shardproof
