// How many collective calls each rank of a world has entered, and the last one, in shared memory:
// written by the ranks, read by control for the hang rule and for "last call" in messages.
//
//   | header: tid that crashed | rank 0: calls, tid, version, label | rank 1: ... |
#pragma once

#include <cstdint>
#include <string>

#include "base/mapped_pages.h"

namespace shardproof::sim::world {

class CallBoard {
 public:
  explicit CallBoard(int64_t world_size);     // new pages, all zero
  CallBoard(OwnedFd fd, int64_t world_size);  // the same pages in another process

  int fd() const { return fd_.get(); }

  // By the rank's own thread.
  void started(int64_t rank);
  void entered(int64_t rank, const std::string& label);  // cut to kLabelBytes
  // Also in a signal handler: the calling thread is about to take the process down. The first
  // counts.
  void crashing();

  // By control.
  uint64_t calls(int64_t rank) const;
  uint64_t total_calls() const;
  std::string last_label(int64_t rank) const;
  int64_t crashed_rank() const;  // -1: no rank's thread said so
  void clear();                  // between cases

  static constexpr size_t kLabelBytes = 216;

 private:
  struct Header;
  struct Slot;
  static size_t bytes_of(int64_t world_size);
  Slot& slot(int64_t rank) const;
  Header& header() const;

  OwnedFd fd_;
  int64_t world_size_;
  MappedPages pages_;
};

}  // namespace shardproof::sim::world
