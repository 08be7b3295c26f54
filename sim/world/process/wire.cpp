#include "sim/world/process/wire.h"

#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"

namespace shardproof::sim::world {

namespace {

constexpr size_t kMaxFds = 16;
constexpr size_t kReadChunk = 64 * 1024;

struct Header {
  uint32_t bytes;
  uint16_t type;
  uint16_t fds;
};
static_assert(sizeof(Header) == 8);

// One part of bytes, and descriptors beside it.
struct Message {
  Message(char* bytes, size_t size) : part{bytes, size} {
    head.msg_iov = &part;
    head.msg_iovlen = 1;
  }
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;

  void attach(const std::vector<int>& fds) {
    if (fds.empty()) return;
    SHARDPROOF_ASSERT(fds.size() <= kMaxFds, "too many descriptors in one message");
    head.msg_control = control;
    head.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
    cmsghdr* of_fds = CMSG_FIRSTHDR(&head);
    of_fds->cmsg_level = SOL_SOCKET;
    of_fds->cmsg_type = SCM_RIGHTS;
    of_fds->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
    std::memcpy(CMSG_DATA(of_fds), fds.data(), sizeof(int) * fds.size());
  }

  ssize_t receive(int socket, bool dont_wait) {
    head.msg_control = control;
    head.msg_controllen = sizeof(control);
    const int flags = MSG_CMSG_CLOEXEC | (dont_wait ? MSG_DONTWAIT : 0);
    return TEMP_FAILURE_RETRY(::recvmsg(socket, &head, flags));
  }

  ssize_t transmit(int socket, bool dont_wait) const {
    const int flags = MSG_NOSIGNAL | (dont_wait ? MSG_DONTWAIT : 0);
    return TEMP_FAILURE_RETRY(::sendmsg(socket, &head, flags));
  }

  iovec part;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxFds)];
  msghdr head{};
};

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

}  // namespace

FrameReader::Status FrameReader::read_some(int socket, bool dont_wait) {
  had_data_ = false;
  if (forged_) return Status::kClosed;
  Message message(buffer_.room(kReadChunk), kReadChunk);
  const ssize_t got = message.receive(socket, dont_wait);
  if (got < 0) return errno == EAGAIN ? Status::kOpen : Status::kClosed;
  buffer_.arrived(static_cast<size_t>(got));
  take_fds(message.head, fds_);
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
    Message message(bytes_.data() + sent_, bytes_.size() - sent_);
    if (sent_ == 0) {
      std::vector<int> raw;
      for (const OwnedFd& fd : fds_) raw.push_back(fd.get());
      message.attach(raw);
    }
    const ssize_t sent = message.transmit(socket, dont_wait);
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
  Message message(const_cast<char*>(bytes.data()), bytes.size());
  message.attach(fds);
  return message.transmit(socket, false) >= 0;
}

DatagramStatus receive_datagram(int socket, bool dont_wait, Datagram& into) {
  into = {};
  into.bytes.resize(kMaxDatagram);
  Message message(into.bytes.data(), into.bytes.size());
  const ssize_t got = message.receive(socket, dont_wait);
  if (got < 0 && errno == EAGAIN) return DatagramStatus::kNothing;
  if (got <= 0) return DatagramStatus::kClosed;
  take_fds(message.head, into.fds);
  into.bytes.resize(static_cast<size_t>(got));
  return DatagramStatus::kReceived;
}

char* RecordBuffer::room(size_t most) {
  if (begin_ == end_) clear();
  if (begin_ > 0 && bytes_.size() - end_ < most) {
    std::memmove(bytes_.data(), bytes_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  if (bytes_.size() - end_ < most) bytes_.resize(end_ + most);
  return bytes_.data() + end_;
}

void RecordBuffer::arrived(size_t count) {
  SHARDPROOF_ASSERT(count <= bytes_.size() - end_, "more bytes arrived than there was room for");
  end_ += count;
}

Inbox::Inbox(int socket, std::function<void(const Frame&)> on_urgent, std::optional<FrameSeal> seal,
             std::function<void()> on_close)
    : socket_(socket),
      seal_(seal),
      on_urgent_(std::move(on_urgent)),
      on_close_(std::move(on_close)) {
  std::thread([this] { read(); }).detach();  // ends with the process
}

Frame Inbox::next() {
  const Lock lock(mutex_);
  while (frames_.empty()) arrived_.wait(mutex_);
  Frame frame = std::move(frames_.front());
  frames_.pop_front();
  return frame;
}

void Inbox::read() {
  FrameReader reader(seal_);
  while (reader.read_some(socket_, false) == FrameReader::Status::kOpen) {
    while (std::optional<Frame> frame = reader.next()) {
      if (frame->type != FrameType::kRequest && frame->type != FrameType::kGolden) {
        on_urgent_(*frame);
        continue;
      }
      const Lock lock(mutex_);
      frames_.push_back(std::move(*frame));
      arrived_.notify_one();
    }
  }
  if (on_close_) on_close_();
  ::_exit(0);
}

}  // namespace shardproof::sim::world
