// Tensor memory that one thread allocates and frees, with a peak that can be reset.
#pragma once

#include <cstdint>
#include <memory>

namespace shardproof {

// Counts allocations of the thread that made this object, and those that a backend's thread makes
// for its calls, and forwards them to the earlier listener. Of two objects, the later one must end
// first. Other memory that another thread frees counts there.
class TensorMemory {
 public:
  TensorMemory();
  ~TensorMemory();
  TensorMemory(const TensorMemory&) = delete;
  TensorMemory& operator=(const TensorMemory&) = delete;
  int64_t current_bytes() const;  // allocated since construction and not freed
  int64_t peak_bytes() const;     // since construction, or since reset_peak()
  void reset_peak();              // sets it to the current bytes

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardproof
