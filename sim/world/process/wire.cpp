#include "sim/world/process/wire.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace shardproof::sim {
namespace {

constexpr size_t kMaxFds = 16;
constexpr size_t kReadChunk = 64 * 1024;

struct Header {
  uint32_t bytes;
  uint16_t type;
  uint16_t fds;
};
static_assert(sizeof(Header) == 8);

// Room for the descriptors of one message.
union ControlBuffer {
  cmsghdr align;
  char bytes[CMSG_SPACE(sizeof(int) * kMaxFds)];
};

void attach(msghdr& message, ControlBuffer& control, const std::vector<int>& fds) {
  if (fds.empty()) return;
  SHARDPROOF_ASSERT(fds.size() <= kMaxFds, "too many descriptors in one message");
  message.msg_control = control.bytes;
  message.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
  cmsghdr* head = CMSG_FIRSTHDR(&message);
  head->cmsg_level = SOL_SOCKET;
  head->cmsg_type = SCM_RIGHTS;
  head->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
  std::memcpy(CMSG_DATA(head), fds.data(), sizeof(int) * fds.size());
}

template <class Container>
void take_fds(msghdr& message, Container& into) {
  for (cmsghdr* head = CMSG_FIRSTHDR(&message); head; head = CMSG_NXTHDR(&message, head)) {
    if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(int));
      into.push_back(OwnedFd(fd));
    }
  }
}

ssize_t receive(int socket, msghdr& message, int flags) {
  for (;;) {
    const ssize_t got = ::recvmsg(socket, &message, flags | MSG_CMSG_CLOEXEC);
    if (got >= 0 || errno != EINTR) return got;
  }
}

ssize_t transmit(int socket, const msghdr& message, int flags) {
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &message, flags | MSG_NOSIGNAL);
    if (sent >= 0 || errno != EINTR) return sent;
  }
}

}  // namespace

FrameReader::Status FrameReader::read_some(int socket, bool dont_wait) {
  had_data_ = false;
  if (forged_) return Status::kClosed;
  iovec part{buffer_.room(kReadChunk), kReadChunk};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  const ssize_t got = receive(socket, message, dont_wait ? MSG_DONTWAIT : 0);
  if (got < 0) return errno == EAGAIN ? Status::kOpen : Status::kClosed;
  buffer_.arrived(static_cast<size_t>(got));
  take_fds(message, fds_);
  had_data_ = got > 0;
  return got == 0 ? Status::kClosed : Status::kOpen;
}

std::optional<Frame> FrameReader::next() {
  if (forged_) return std::nullopt;
  auto record = buffer_.take<Header>();
  if (!record) return std::nullopt;
  const uint16_t fds = record->header.fds;
  if (seal_) {
    auto payload = seal_->open(record->header.type, record->payload);
    forged_ = !payload || fds != 0;
    if (forged_) return std::nullopt;
    record->payload = std::move(*payload);
  }
  SHARDPROOF_ASSERT(fds <= fds_.size(), "a frame announced more descriptors than arrived");
  Frame frame{static_cast<FrameType>(record->header.type), std::move(record->payload), {}};
  for (uint16_t i = 0; i < fds; ++i) {
    frame.fds.push_back(std::move(fds_.front()));
    fds_.pop_front();
  }
  return frame;
}

std::optional<Frame> read_one_frame(int socket, size_t max_bytes) {
  Header header;
  if (::recv(socket, &header, sizeof(header), MSG_WAITALL) != sizeof(header)) return std::nullopt;
  if (header.bytes > max_bytes || header.fds != 0) return std::nullopt;
  Frame frame{static_cast<FrameType>(header.type), std::string(header.bytes, '\0'), {}};
  const ssize_t got = ::recv(socket, frame.payload.data(), header.bytes, MSG_WAITALL);
  if (got != static_cast<ssize_t>(header.bytes)) return std::nullopt;
  return frame;
}

FrameWriter::FrameWriter(FrameType type, const std::string& payload, std::vector<OwnedFd> fds)
    : fds_(std::move(fds)) {
  SHARDPROOF_ASSERT(payload.size() < UINT32_MAX, "a frame of 4 GiB or more");
  const Header header{static_cast<uint32_t>(payload.size()), static_cast<uint16_t>(type),
                      static_cast<uint16_t>(fds_.size())};
  bytes_.reserve(sizeof(header) + payload.size());
  bytes_.append(reinterpret_cast<const char*>(&header), sizeof(header));
  bytes_.append(payload);
}

FrameWriter::Status FrameWriter::write_some(int socket, bool dont_wait) {
  while (sent_ < bytes_.size()) {
    iovec part{bytes_.data() + sent_, bytes_.size() - sent_};
    ControlBuffer control;
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (sent_ == 0) {
      std::vector<int> raw;
      for (const OwnedFd& fd : fds_) raw.push_back(fd.get());
      attach(message, control, raw);
    }
    const ssize_t sent = transmit(socket, message, dont_wait ? MSG_DONTWAIT : 0);
    if (sent < 0) return errno == EAGAIN ? Status::kAgain : Status::kBroken;
    sent_ += static_cast<size_t>(sent);
    fds_.clear();
  }
  return Status::kDone;
}

bool send_frame(int socket, FrameType type, const std::string& payload) {
  return FrameWriter(type, payload).write_some(socket, false) == FrameWriter::Status::kDone;
}

bool send_datagram(int socket, const std::string& bytes, const std::vector<int>& fds) {
  SHARDPROOF_ASSERT(bytes.size() <= kMaxDatagram, "a datagram over its limit");
  iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  attach(message, control, fds);
  return transmit(socket, message, 0) >= 0;
}

DatagramStatus receive_datagram(int socket, bool dont_wait, Datagram& into) {
  into = {};
  into.bytes.resize(kMaxDatagram);
  iovec part{into.bytes.data(), into.bytes.size()};
  ControlBuffer control;
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof(control.bytes);
  const ssize_t got = receive(socket, message, dont_wait ? MSG_DONTWAIT : 0);
  if (got < 0 && errno == EAGAIN) return DatagramStatus::kNothing;
  if (got <= 0) return DatagramStatus::kClosed;
  take_fds(message, into.fds);
  into.bytes.resize(static_cast<size_t>(got));
  return DatagramStatus::kReceived;
}

}  // namespace shardproof::sim
