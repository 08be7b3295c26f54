#include "sim/world/process/call_lines.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace shardproof::sim::world {
namespace {

constexpr auto kWaitForSpace = std::chrono::microseconds(100);

struct LineHeader {
  uint32_t bytes;
};

}  // namespace

// Counted since the beginning: put - taken bytes are in the ring, the first at taken % kRingBytes.
struct CallLines::Ring {
  alignas(64) std::atomic<uint64_t> put;
  alignas(64) std::atomic<uint64_t> taken;
  alignas(64) char bytes[kRingBytes];
};

size_t CallLines::bytes_of(int64_t world_size) {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  return sizeof(Ring) * static_cast<size_t>(world_size);
}

CallLines::CallLines(int64_t world_size)
    : CallLines(new_memory("shardproof-lines", bytes_of(world_size), "the call lines of a world"),
                world_size) {
  read_.resize(static_cast<size_t>(world_size));
}

CallLines::CallLines(OwnedFd fd, int64_t world_size)
    : fd_(std::move(fd)), world_size_(world_size), pages_(fd_.get(), bytes_of(world_size), true) {
  if (pages_.data() == nullptr) {
    throw InternalError("the call lines of a world cannot be mapped");
  }
}

CallLines::Ring& CallLines::ring(int64_t rank) const {
  SHARDPROOF_ASSERT(rank >= 0 && rank < world_size_, "no such rank in the call lines");
  return static_cast<Ring*>(pages_.data())[rank];
}

void CallLines::put(int64_t rank, std::string_view line) {
  const LineHeader header{.bytes = static_cast<uint32_t>(line.size())};
  std::string record(sizeof(header), '\0');
  std::memcpy(record.data(), &header, sizeof(header));
  record += line;
  Ring& to = ring(rank);
  uint64_t put = to.put.load(std::memory_order_relaxed);
  for (size_t done = 0; done < record.size();) {
    const uint64_t space = kRingBytes - (put - to.taken.load(std::memory_order_acquire));
    const uint64_t at = put % kRingBytes;
    const auto some = std::min<uint64_t>({space, kRingBytes - at, record.size() - done});
    if (space == 0) {
      std::this_thread::sleep_for(kWaitForSpace);
      continue;
    }
    std::memcpy(to.bytes + at, record.data() + done, some);
    done += some;
    put += some;
    to.put.store(put, std::memory_order_release);
  }
}

// The counts are a rank's to write over: none of them leads out of the ring.
void CallLines::read(int64_t rank) {
  Ring& from = ring(rank);
  RecordBuffer& into = read_.at(static_cast<size_t>(rank));
  const uint64_t put = from.put.load(std::memory_order_acquire);
  uint64_t taken = from.taken.load(std::memory_order_relaxed);
  if (put - taken > kRingBytes) taken = put;
  while (taken != put) {
    const uint64_t at = taken % kRingBytes;
    const auto some = std::min<uint64_t>(put - taken, kRingBytes - at);
    std::memcpy(into.room(some), from.bytes + at, some);
    into.arrived(some);
    taken += some;
  }
  from.taken.store(taken, std::memory_order_release);
}

std::optional<std::string> CallLines::take(int64_t rank) {
  RecordBuffer& arrived = read_.at(static_cast<size_t>(rank));
  auto record = arrived.take<LineHeader>();
  if (!record) {
    read(rank);
    record = arrived.take<LineHeader>();
  }
  if (!record) return std::nullopt;
  return std::move(record->payload);
}

void CallLines::clear() {
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    read(rank);
    read_[static_cast<size_t>(rank)].clear();
  }
}

}  // namespace shardproof::sim::world
