// The call lines of each rank of a process world, in shared memory: a rank puts a line and goes on,
// control takes what has come every few milliseconds. A line through a socket would wake control
// for each call, and waking costs more than matching. What a rank put before it was killed stays.
//
//   | rank 0: put, taken, ring of kRingBytes | rank 1: ... |
//
// Through the ring goes a stream of records, | bytes: u32 | line ... |: a line may be longer than
// the ring. One writer a rank (the rank's process, one thread at a time), one reader of all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_pages.h"
#include "sim/world/process/wire.h"

namespace shardproof::sim::world {

class CallLines {
 public:
  explicit CallLines(int64_t world_size);     // new pages; throws InternalError: no memory
  CallLines(OwnedFd fd, int64_t world_size);  // the same pages in another process

  int fd() const { return fd_.get(); }

  // By the rank. Waits while the ring is full.
  void put(int64_t rank, std::string_view line);

  // By control: the next whole line, in the order in which they were put.
  std::optional<std::string> take(int64_t rank);
  void clear();  // between cases: what was put and not taken is gone

  static constexpr uint64_t kRingBytes = 64 * 1024;

 private:
  struct Ring;
  Ring& ring(int64_t rank) const;
  static size_t bytes_of(int64_t world_size);
  void read(int64_t rank);

  OwnedFd fd_;
  int64_t world_size_;
  MappedPages pages_;
  std::vector<RecordBuffer> read_;  // by rank: taken out of the ring, not yet a whole line
};

}  // namespace shardproof::sim::world
