#include "sim/launch/call_lines.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/error.h"

namespace shardproof::sim {
namespace {

constexpr auto kWaitForSpace = std::chrono::microseconds(100);

size_t bytes_of_rings(size_t ring_bytes, int64_t world_size) {
  return ring_bytes * static_cast<size_t>(world_size);
}

}  // namespace

// Counted since the beginning: put - taken bytes are in the ring, the first at taken % kRingBytes.
struct CallLines::Ring {
  alignas(64) std::atomic<uint64_t> put;
  alignas(64) std::atomic<uint64_t> taken;
  alignas(64) char bytes[kRingBytes];
};

CallLines::CallLines(int64_t world_size)
    : fd_(::memfd_create("shardproof-lines", MFD_CLOEXEC)),
      world_size_(world_size),
      read_(static_cast<size_t>(world_size)) {
  const auto bytes = static_cast<off_t>(bytes_of_rings(sizeof(Ring), world_size));
  if (!fd_.valid() || ::ftruncate(fd_.get(), bytes) != 0) {
    throw InternalError("no shared memory for the call lines of a world");
  }
  map();
}

CallLines::CallLines(OwnedFd fd, int64_t world_size) : fd_(std::move(fd)), world_size_(world_size) {
  map();
}

CallLines::~CallLines() { ::munmap(pages_, bytes_of_rings(sizeof(Ring), world_size_)); }

void CallLines::map() {
  static_assert(std::atomic<uint64_t>::is_always_lock_free);
  void* pages = ::mmap(nullptr, bytes_of_rings(sizeof(Ring), world_size_), PROT_READ | PROT_WRITE,
                       MAP_SHARED, fd_.get(), 0);
  if (pages == MAP_FAILED) throw InternalError("the call lines of a world cannot be mapped");
  pages_ = pages;
}

CallLines::Ring& CallLines::ring(int64_t rank) const {
  SHARDPROOF_ASSERT(rank >= 0 && rank < world_size_, "no such rank in the call lines");
  return static_cast<Ring*>(pages_)[rank];
}

void CallLines::put(int64_t rank, std::string_view line) {
  const auto size = static_cast<uint32_t>(line.size());
  std::string record(sizeof(size), '\0');
  std::memcpy(record.data(), &size, sizeof(size));
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
  std::string& into = read_.at(static_cast<size_t>(rank));
  const uint64_t put = from.put.load(std::memory_order_acquire);
  uint64_t taken = from.taken.load(std::memory_order_relaxed);
  if (put - taken > kRingBytes) taken = put;
  while (taken != put) {
    const uint64_t at = taken % kRingBytes;
    const auto some = std::min<uint64_t>(put - taken, kRingBytes - at);
    into.append(from.bytes + at, some);
    taken += some;
  }
  from.taken.store(taken, std::memory_order_release);
}

std::optional<std::string> CallLines::take(int64_t rank) {
  std::string& have = read_.at(static_cast<size_t>(rank));
  const auto whole = [&have]() -> std::optional<std::string> {
    uint32_t size = 0;
    if (have.size() < sizeof(size)) return std::nullopt;
    std::memcpy(&size, have.data(), sizeof(size));
    if (have.size() - sizeof(size) < size) return std::nullopt;
    std::string line = have.substr(sizeof(size), size);
    have.erase(0, sizeof(size) + size);
    return line;
  };
  if (auto line = whole()) return line;
  read(rank);
  return whole();
}

void CallLines::clear() {
  for (int64_t rank = 0; rank < world_size_; ++rank) {
    read(rank);
    read_[static_cast<size_t>(rank)].clear();
  }
}

}  // namespace shardproof::sim
