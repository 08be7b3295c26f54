// Counts the bytes of the tensors that one rank's thread makes and drops.
#pragma once

#include <cstdint>
#include <memory>

namespace shardproof::sim {

// While it lives, allocations of CPU and GPU tensor memory on this thread are counted, and what a
// backend's thread makes for its calls. Other memory that another thread frees counts there.
class TensorMemory {
 public:
  TensorMemory();
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;
  int64_t current_bytes() const;  // made since its birth and not dropped
  int64_t peak_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardproof::sim
