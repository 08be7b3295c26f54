#include "sim/world/nodes/netlink.h"

#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace shardproof::sim::world {
namespace {

constexpr size_t kLargestAnswer = 256 * 1024;
// The kernel answers at once; more than this is not an answer.
constexpr timeval kPatience{5, 0};

void pad(std::string& bytes) { bytes.resize(NLMSG_ALIGN(bytes.size())); }

}  // namespace

NetlinkMessage::NetlinkMessage(uint16_t type, uint16_t flags, std::string_view body) {
  nlmsghdr head{};
  head.nlmsg_type = type;
  head.nlmsg_flags = static_cast<uint16_t>(flags | NLM_F_REQUEST);
  bytes_.append(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes_.append(body);
  pad(bytes_);
}

void NetlinkMessage::add(uint16_t type, std::string_view bytes) {
  rtattr head{};
  head.rta_len = static_cast<uint16_t>(RTA_LENGTH(bytes.size()));
  head.rta_type = type;
  bytes_.append(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes_.append(bytes);
  pad(bytes_);
}

void NetlinkMessage::add_text(uint16_t type, const std::string& text) {
  add(type, std::string_view(text.c_str(), text.size() + 1));
}

size_t NetlinkMessage::open(uint16_t type, std::string_view head) {
  const size_t opened = bytes_.size();
  add(type, head);
  return opened;
}

void NetlinkMessage::close(size_t opened) {
  rtattr head{};
  std::memcpy(&head, bytes_.data() + opened, sizeof(head));
  head.rta_len = static_cast<uint16_t>(bytes_.size() - opened);
  std::memcpy(bytes_.data() + opened, &head, sizeof(head));
}

std::string NetlinkMessage::finished(uint32_t sequence) const {
  std::string bytes = bytes_;
  nlmsghdr head{};
  std::memcpy(&head, bytes.data(), sizeof(head));
  head.nlmsg_len = static_cast<uint32_t>(bytes.size());
  head.nlmsg_seq = sequence;
  std::memcpy(bytes.data(), &head, sizeof(head));
  return bytes;
}

std::string_view NetlinkAttributes::find(uint16_t type) const {
  for (std::string_view left = bytes_; left.size() >= sizeof(rtattr);) {
    rtattr head{};
    std::memcpy(&head, left.data(), sizeof(head));
    if (head.rta_len < sizeof(head) || head.rta_len > left.size()) break;
    if ((head.rta_type & NLA_TYPE_MASK) == type) {
      return left.substr(sizeof(head), head.rta_len - sizeof(head));
    }
    left.remove_prefix(std::min<size_t>(RTA_ALIGN(head.rta_len), left.size()));
  }
  return {};
}

OwnedFd Netlink::open_socket() {
  OwnedFd socket(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE));
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  return socket;
}

int Netlink::exchange(const NetlinkMessage& message, std::vector<std::string>& answers) {
  const std::string bytes = message.finished(++sequence_);
  sockaddr_nl kernel{};
  kernel.nl_family = AF_NETLINK;
  if (::sendto(socket_.get(), bytes.data(), bytes.size(), 0,
               reinterpret_cast<const sockaddr*>(&kernel), sizeof(kernel)) < 0) {
    return errno;
  }
  std::string arrived(kLargestAnswer, '\0');
  for (;;) {
    const ssize_t got = ::recv(socket_.get(), arrived.data(), arrived.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got < 0 ? errno : EPIPE;
    for (size_t at = 0; at + sizeof(nlmsghdr) <= static_cast<size_t>(got);) {
      nlmsghdr head{};
      std::memcpy(&head, arrived.data() + at, sizeof(head));
      if (head.nlmsg_len < sizeof(head) || at + head.nlmsg_len > static_cast<size_t>(got)) break;
      const std::string_view body(arrived.data() + at + sizeof(head),
                                  head.nlmsg_len - sizeof(head));
      at += NLMSG_ALIGN(head.nlmsg_len);
      if (head.nlmsg_seq != sequence_) continue;  // of a request that was given up
      if (head.nlmsg_type == NLMSG_DONE) return 0;
      if (head.nlmsg_type == NLMSG_ERROR) {
        int error = 0;
        std::memcpy(&error, body.data(), sizeof(error));
        return -error;
      }
      answers.emplace_back(body);
    }
  }
}

int Netlink::ask(const NetlinkMessage& message) {
  std::vector<std::string> ignored;
  return exchange(message, ignored);
}

std::vector<std::string> Netlink::dump(const NetlinkMessage& message) {
  std::vector<std::string> answers;
  if (exchange(message, answers) != 0) answers.clear();
  return answers;
}

}  // namespace shardproof::sim::world
