// TCP connections between control and the ranks of another launcher.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "base/owned_fd.h"

namespace shardproof::sim::world {

struct NetAddress {
  std::string host;  // as a number
  int port = 0;
};

struct ListeningSocket {
  OwnedFd socket;
  NetAddress address;
};

// Listens at the address of this machine that `host` names, and at no other; port 0: any free one.
// `on_one_host`: loopback will do. Throws Error(kBadInput): no such address, or the port is taken.
ListeningSocket listen_at(const std::string& host, int port, bool on_one_host);

// Tries until somebody listens there. Throws Error(kFailed) when nobody does within the limit.
OwnedFd connect_to(const NetAddress& address, std::chrono::seconds limit);

// This end of a connection.
NetAddress own_address(int socket);
// Small frames are sent at once.
void send_at_once(int socket);
// How long the other host has acknowledged nothing although something was sent; 0: nothing waits.
std::chrono::milliseconds unanswered_for(int socket);

// Exactly this many bytes; nothing when they do not come within the limit (0: none) or the other
// side goes.
std::optional<std::string> receive(int socket, size_t bytes, std::chrono::seconds limit);

// Returns once the name is known. Throws Error(kBadInput) at once for a name that does not exist,
// unless `may_come_late`, and for one that could not be looked up within `limit`. A wait says on
// standard error what for.
void require_resolves(const std::string& host, bool may_come_late, std::chrono::seconds limit);

}  // namespace shardproof::sim::world
