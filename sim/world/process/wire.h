// Frames over a unix stream socket, between control and a worker; file descriptors may ride along.
//
//   | payload bytes: u32 | type: u16 | descriptors: u16 | payload ... |      (host byte order)
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "base/mutex.h"
#include "base/owned_fd.h"
#include "sim/world/process/seal.h"

namespace shardproof::sim::world {

enum class FrameType : uint16_t {
  // control -> worker
  kRequest = 1,  // CaseSpec as JSON; descriptor 0: the golden, if there is one
  kAbort = 2,    // why, in words
  kGolden = 3,   // for ranks that take no descriptors: a path, or the bytes (external_rank.h)
  kExit = 4,     // the exit status, as text
  kAskOps = 5,   // how many ops it has begun; the answer is kOps
  // worker -> control
  kCallLine = 10,   // one collective call of this rank, before it runs; else through CallLines
  kEndings = 11,    // of all ranks of this worker
  kTaskDone = 12,   // outcome of a golden
  kHello = 13,      // of a rank that another launcher started
  kHeartbeat = 14,  // its CPU seconds so far, and whether it is runnable
  kFault = 15,      // a planted fault acts on a rank
  kOps = 16,        // ops begun so far (op_count.h), as text
  // both ways
  kStore = 20,  // a request to the store that control holds, and its answer (control_store.h)
};

struct Frame {
  FrameType type = FrameType::kRequest;
  std::string payload;
  std::vector<OwnedFd> fds;
};

// Bytes that arrive in any pieces and are taken out as whole records.
//
//   | Header, whose `bytes` says how many follow | payload ... |      (host byte order)
//
// Taking a record moves no byte of the others: its bytes are reused when a writer needs room.
template <class Header>
struct Record {
  Header header;
  std::string payload;
};

class RecordBuffer {
 public:
  // Memory for `most` bytes behind those that have arrived; arrived() then says how many came. It
  // is good until the next call.
  char* room(size_t most);
  void arrived(size_t count);

  // The next record, once all of it has arrived.
  template <class Header>
  std::optional<Record<Header>> take() {
    static_assert(std::is_trivially_copyable_v<Header>);
    Record<Header> record;
    if (end_ - begin_ < sizeof(Header)) return std::nullopt;
    std::memcpy(&record.header, bytes_.data() + begin_, sizeof(Header));
    if (end_ - begin_ - sizeof(Header) < record.header.bytes) return std::nullopt;
    record.payload.assign(bytes_, begin_ + sizeof(Header), record.header.bytes);
    begin_ += sizeof(Header) + record.header.bytes;
    return record;
  }

  // All that has arrived is gone.
  void clear() { begin_ = end_ = 0; }

 private:
  std::string bytes_;  // from begin_ to end_: arrived and not taken; behind end_: room
  size_t begin_ = 0;
  size_t end_ = 0;
};

// Takes frames out of the bytes that have arrived.
class FrameReader {
 public:
  // With `seal`, frames are opened with it; the first that it does not open closes the stream.
  explicit FrameReader(std::optional<FrameSeal> seal = std::nullopt) : seal_(seal) {}

  enum class Status { kOpen, kClosed };
  // Reads what is there with one recvmsg; kClosed at the end of the stream or on any error. Blocks
  // if the socket does, unless `dont_wait`.
  Status read_some(int socket, bool dont_wait);
  std::optional<Frame> next();
  bool had_data() const { return had_data_; }  // the last read_some brought something
  bool forged() const { return forged_; }      // a frame came that `seal` does not open

 private:
  RecordBuffer buffer_;
  std::deque<OwnedFd> fds_;
  bool had_data_ = false;
  std::optional<FrameSeal> seal_;
  bool forged_ = false;
};

// A frame on its way out; `fds` are borrowed until its first byte is sent.
class FrameWriter {
 public:
  FrameWriter(FrameType type, const std::string& payload, std::vector<OwnedFd> fds = {});
  enum class Status { kDone, kAgain, kBroken };
  Status write_some(int socket, bool dont_wait);

 private:
  std::string bytes_;
  size_t sent_ = 0;
  std::vector<OwnedFd> fds_;
};

// Reads exactly one frame without descriptors, blocking; nothing when the other side has gone, is
// too slow (SO_RCVTIMEO) or announces more than `max_bytes`.
std::optional<Frame> read_one_frame(int socket, size_t max_bytes);
// Sends a whole frame, blocking. False when the other side has gone.
bool send_frame(int socket, FrameType type, const std::string& payload);

// Datagrams between control and the zygote (SOCK_SEQPACKET), with descriptors. False / nullopt when
// the other side has gone.
inline constexpr size_t kMaxDatagram = 64 * 1024;
bool send_datagram(int socket, const std::string& bytes, const std::vector<int>& fds);
struct Datagram {
  std::string bytes;
  std::vector<OwnedFd> fds;
};
enum class DatagramStatus { kReceived, kNothing, kClosed };
DatagramStatus receive_datagram(int socket, bool dont_wait, Datagram& into);

// The worker's end of its channel: requests in order of arrival, read on a thread of its own so
// that an abort gets past a rank that waits, and so that the process ends the moment control has
// gone.

class Inbox {
 public:
  // `on_urgent` hears of every frame that is neither kRequest nor kGolden, on the reading thread.
  // When the channel closes the process exits with 0, unless `on_close` ends it otherwise.
  // `seal`: of the frames that come in, where they come over a network.
  Inbox(int socket, std::function<void(const Frame&)> on_urgent,
        std::optional<FrameSeal> seal = std::nullopt, std::function<void()> on_close = {});

  Frame next();  // waits for a kRequest or kGolden

 private:
  void read();

  int socket_;
  std::optional<FrameSeal> seal_;
  std::function<void(const Frame&)> on_urgent_;
  std::function<void()> on_close_;
  Mutex mutex_;
  Condition arrived_;
  std::deque<Frame> frames_ SHARDPROOF_GUARDED_BY(mutex_);
};

}  // namespace shardproof::sim::world
