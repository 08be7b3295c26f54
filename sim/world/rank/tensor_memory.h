// Counts the bytes of the tensors that one rank's thread allocates and frees.
#pragma once

#include <cstdint>
#include <memory>

namespace shardproof::sim {

// Counts allocations of CPU and GPU tensor memory on this thread until its destruction, and those
// of a backend's thread for its calls. Other memory that another thread frees is counted there.
class TensorMemory {
 public:
  TensorMemory();
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;
  int64_t current_bytes() const;  // allocated since the construction and not freed
  int64_t peak_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardproof::sim
