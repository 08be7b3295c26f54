#include "sim/world/external/connection.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "base/elapsed.h"
#include "base/error.h"

namespace shardproof::sim::world {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)>;

// Those of IPv4, else those of IPv6: both ends look at the same ones. Null where the name is not
// known; `why` then says so, and `exists` is false where it will not be known later either.
Addresses addresses_of(const std::string& host, int port, std::string* why,
                       bool* exists = nullptr) {
  bool may_exist = false;
  for (const int family : {AF_INET, AF_INET6}) {
    addrinfo hints{};
    hints.ai_family = family;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
    if (error == 0) return {found, ::freeaddrinfo};
    *why = ::gai_strerror(error);
    may_exist = may_exist || error == EAI_AGAIN || error == EAI_SYSTEM;
  }
  if (exists != nullptr) *exists = may_exist;
  return {nullptr, ::freeaddrinfo};
}

bool is_loopback_address(const sockaddr& address) {
  if (address.sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  }
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

NetAddress numeric(const sockaddr* address, socklen_t size) {
  char host[NI_MAXHOST] = {}, port[NI_MAXSERV] = {};
  ::getnameinfo(address, size, host, sizeof(host), port, sizeof(port),
                NI_NUMERICHOST | NI_NUMERICSERV);
  return {host, std::atoi(port)};
}

// Invalid, with errno, where that address cannot be listened at.
OwnedFd listening(const addrinfo& at) {
  OwnedFd socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  const bool listens =
      ::bind(socket.get(), at.ai_addr, at.ai_addrlen) == 0 && ::listen(socket.get(), 1024) == 0;
  return listens ? std::move(socket) : OwnedFd();
}

OwnedFd connected(const addrinfo& at) {
  OwnedFd socket(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const timeval patience{10, 0};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (::connect(socket.get(), at.ai_addr, at.ai_addrlen) != 0) return OwnedFd();
  const timeval none{};
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &none, sizeof(none));
  return socket;
}

}  // namespace

ListeningSocket listen_at(const std::string& host, int port, bool on_one_host) {
  std::string why;
  const Addresses found = addresses_of(host, port, &why);
  bool only_loopback = found != nullptr;
  for (const addrinfo* at = found.get(); at; at = at->ai_next) {
    if (!on_one_host && is_loopback_address(*at->ai_addr)) continue;
    only_loopback = false;
    OwnedFd socket = listening(*at);
    if (!socket.valid()) {
      why = std::strerror(errno);
      continue;
    }
    const NetAddress address = own_address(socket.get());
    return {std::move(socket), address};
  }
  if (only_loopback) why = "here this name is loopback, which other hosts do not reach";
  throw_bad_input(fmt::format("rank 0's host cannot listen at MASTER_ADDR={}{}: {}", host,
                              port == 0 ? "" : fmt::format(", MASTER_PORT={}", port), why),
                  "export MASTER_ADDR as an address of that host that the others reach "
                  "(`ip -brief address` lists them), and MASTER_PORT as a free port");
}

void require_resolves(const std::string& host, bool may_come_late, std::chrono::seconds limit) {
  const auto start = std::chrono::steady_clock::now();
  const auto late = [&] { return seconds_since(start) >= static_cast<double>(limit.count()); };
  for (bool reported = false;; reported = true) {
    std::string why;
    bool exists = true;
    if (addresses_of(host, 0, &why, &exists) != nullptr) return;
    const bool waits = exists || may_come_late;
    if (!waits || late()) {
      throw_bad_input(fmt::format("MASTER_ADDR: {} does not resolve{}: {}", host,
                                  waits ? fmt::format(" after {} s", limit.count()) : "", why),
                      waits
                          ? "export MASTER_ADDR as the name or address of rank 0's host"
                          : "export MASTER_ADDR as the name or address of rank 0's host, or "
                            "SHARDPROOF_MEETING_S as the seconds in which the name becomes known");
    }
    if (!reported) {
      ::dprintf(STDERR_FILENO,
                "shardproof: MASTER_ADDR: %s does not resolve yet (%s); waiting for it for up to "
                "%lld s\n",
                host.c_str(), why.c_str(), static_cast<long long>(limit.count()));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
  }
}

OwnedFd connect_to(const NetAddress& address, std::chrono::seconds limit) {
  const auto start = std::chrono::steady_clock::now();
  std::string why;
  do {
    const Addresses found = addresses_of(address.host, address.port, &why);
    for (const addrinfo* at = found.get(); at; at = at->ai_next) {
      OwnedFd socket = connected(*at);
      if (socket.valid()) {
        send_at_once(socket.get());
        return socket;
      }
      why = std::strerror(errno);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  } while (seconds_since(start) < static_cast<double>(limit.count()));
  throw_failed(fmt::format("the control process of rank 0 at {}:{} could not be reached "
                           "within {} s: {}",
                           address.host, address.port, limit.count(), why),
               "let MASTER_ADDR name rank 0's host, and open its ports to the other hosts",
               "aborted");
}

NetAddress own_address(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  SHARDPROOF_ASSERT(::getsockname(socket, plain, &size) == 0, "a socket has an address");
  return numeric(plain, size);
}

void send_at_once(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

std::chrono::milliseconds unanswered_for(int socket) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  const bool is_known = ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0;
  return std::chrono::milliseconds(is_known && info.tcpi_unacked > 0 ? info.tcpi_last_ack_recv : 0);
}

std::optional<std::string> receive(int socket, size_t bytes, std::chrono::seconds limit) {
  const timeval patience{limit.count(), 0};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  std::string text(bytes, '\0');
  const ssize_t got = ::recv(socket, text.data(), bytes, MSG_WAITALL);
  const timeval none{};
  ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none));
  if (got != static_cast<ssize_t>(bytes)) return std::nullopt;
  return text;
}

}  // namespace shardproof::sim::world
