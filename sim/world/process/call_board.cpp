#include "sim/world/process/call_board.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace shardproof::sim::world {

struct CallBoard::Header {
  std::atomic<int32_t> crashed_tid;
  char unused[252];
};

// `version` is odd while the label is being written (one writer, readers try again).
struct CallBoard::Slot {
  std::atomic<uint64_t> calls;
  std::atomic<uint32_t> version;
  std::atomic<int32_t> tid;
  char label[kLabelBytes];
  char unused[256 - 16 - kLabelBytes];
};

size_t CallBoard::bytes_of(int64_t world_size) {
  static_assert(sizeof(Header) == 256 && sizeof(Slot) == 256);
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  return sizeof(Header) + static_cast<size_t>(world_size) * sizeof(Slot);
}

CallBoard::CallBoard(int64_t world_size)
    : CallBoard(new_memory("shardproof-calls", bytes_of(world_size), "the calls of a world"),
                world_size) {}

CallBoard::CallBoard(OwnedFd fd, int64_t world_size)
    : fd_(std::move(fd)), world_size_(world_size), pages_(fd_.get(), bytes_of(world_size), true) {
  SHARDPROOF_ASSERT(pages_.data() != nullptr, "the call board cannot be mapped");
}

CallBoard::Header& CallBoard::header() const { return *static_cast<Header*>(pages_.data()); }

CallBoard::Slot& CallBoard::slot(int64_t rank) const {
  SHARDPROOF_ASSERT(rank >= 0 && rank < world_size_, "no such rank on the call board");
  return *reinterpret_cast<Slot*>(static_cast<char*>(pages_.data()) + sizeof(Header) +
                                  static_cast<size_t>(rank) * sizeof(Slot));
}

void CallBoard::started(int64_t rank) { slot(rank).tid.store(::gettid()); }

void CallBoard::entered(int64_t rank, const std::string& label) {
  Slot& at = slot(rank);
  at.version.fetch_add(1, std::memory_order_acq_rel);
  const size_t size = std::min(label.size(), kLabelBytes - 1);
  std::memcpy(at.label, label.data(), size);
  at.label[size] = '\0';
  at.version.fetch_add(1, std::memory_order_acq_rel);
  at.calls.fetch_add(1, std::memory_order_release);
}

void CallBoard::crashing() {
  int32_t nobody = 0;
  header().crashed_tid.compare_exchange_strong(nobody, ::gettid());
}

uint64_t CallBoard::calls(int64_t rank) const {
  return slot(rank).calls.load(std::memory_order_acquire);
}

uint64_t CallBoard::total_calls() const {
  uint64_t total = 0;
  for (int64_t rank = 0; rank < world_size_; ++rank) total += calls(rank);
  return total;
}

std::string CallBoard::last_label(int64_t rank) const {
  const Slot& at = slot(rank);
  std::string label;
  for (int attempt = 0; attempt < 100; ++attempt) {  // a rank killed while writing leaves it odd
    const uint32_t before = at.version.load(std::memory_order_acquire);
    label.assign(at.label, ::strnlen(at.label, kLabelBytes));
    if (before % 2 == 0 && at.version.load(std::memory_order_acquire) == before) break;
  }
  return label;
}

int64_t CallBoard::crashed_rank() const {
  const int32_t tid = header().crashed_tid.load();
  for (int64_t rank = 0; tid != 0 && rank < world_size_; ++rank) {
    if (slot(rank).tid.load() == tid) return rank;
  }
  return -1;
}

void CallBoard::clear() {
  header().crashed_tid.store(0);
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    Slot& at = slot(rank);
    at.calls.store(0);
    at.label[0] = '\0';
  }
}

}  // namespace shardproof::sim::world
