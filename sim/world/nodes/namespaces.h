// Network namespaces without a name: they are there as long as a process has one of these
// descriptors or runs in one. Nothing is left of them when the program has ended, however it did.
#pragma once

#include <string>
#include <vector>

#include "base/owned_fd.h"

namespace shardproof::sim::world {

struct Namespaces {
  struct Network {
    OwnedFd space;
    OwnedFd netlink;  // a socket in it
    std::vector<OwnedFd> taps = {};
  };
  OwnedFd user;  // that owns the networks; invalid: that of the program
  std::vector<Network> networks;
};

// A namespace for each list of TAP devices, by name, that it has. Where this user may not make
// network namespaces, they belong to a new user namespace, which every user may make unless the
// system forbids it. Throws Error(kBadInput): it does, or has no TAP devices.
Namespaces make_namespaces(const std::vector<std::vector<std::string>>& taps);

}  // namespace shardproof::sim::world
