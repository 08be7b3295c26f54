// The links of one network namespace.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/world/nodes/netlink.h"

namespace shardproof::sim::world {

struct LinkState {
  std::string name;
  bool up = false;             // and so is the other end
  uint64_t bytes = 0;          // that it has sent and received so far
  uint64_t waiting_bytes = 0;  // in the queue of a limited link
};

// Functions that change a link throw Error(kBadInput) with what the kernel says.
class Links {
 public:
  explicit Links(OwnedFd netlink_socket) : netlink_(std::move(netlink_socket)) {}

  void add_bridge(const std::string& name);
  // Two ends of a cable, one of them in another namespace.
  void add_cable(const std::string& name, const std::string& other_name, int other_network);
  void join(const std::string& name, const std::string& bridge);
  void set_up(const std::string& name, bool up);
  void set_address(const std::string& name, const std::string& address, uint8_t prefix_bits);
  // What it sends, in bytes per second; 0: no limit.
  void limit(const std::string& name, double bytes_per_s);
  std::vector<LinkState> states();

 private:
  int index_of(const std::string& name);
  void require(const NetlinkMessage& message, const std::string& what);
  Netlink netlink_;
};

}  // namespace shardproof::sim::world
