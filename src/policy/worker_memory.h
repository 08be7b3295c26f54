// Tensor memory that one thread makes and drops, with a peak that can be set back.
#pragma once

#include <cstdint>
#include <memory>

namespace shardproof {

// Hears of allocations on the thread that made it, while it lives, and of what a backend's thread
// makes for its calls, and passes them on to whoever listened before. Of two, the one made later
// ends first. Other memory that another thread frees counts there.
class WorkerMemory {
 public:
  WorkerMemory();
  ~WorkerMemory();
  WorkerMemory(const WorkerMemory&) = delete;
  WorkerMemory& operator=(const WorkerMemory&) = delete;
  int64_t current_bytes() const;  // made since its birth and not dropped
  int64_t peak_bytes() const;     // since its birth, or since reset_peak()
  void reset_peak();              // to what there is now

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardproof
