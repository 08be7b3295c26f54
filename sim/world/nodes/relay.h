// Links that delay and lose packets. The kernel's netem is missing in many systems, so that this
// program carries the packets itself: both ends of such a link are TAP devices, and one thread
// takes each packet from one end, keeps it until it is due, and puts it into the other.
//
//   node: link0 --- [ packets, each with the time when it is due ] --- port<k>: switch
//
// Packets of one direction stay in order. Lost are packets of IPv4 alone, drawn by their number on
// the link, so that names are always found.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "base/mapped_pages.h"

namespace shardproof::sim::world {

// In shared memory: ranks change the links of their nodes.
class RelaySettings {
 public:
  struct Link {
    std::atomic<int64_t> delay_ns;  // in each direction
    std::atomic<double> loss;       // share of packets, in each direction
  };
  explicit RelaySettings(int64_t nodes);  // new pages: no delay, no loss
  explicit RelaySettings(OwnedFd fd);     // the same in another process

  int fd() const { return fd_.get(); }
  Link& of(int64_t node) const { return static_cast<Link*>(pages_.data())[node]; }

 private:
  OwnedFd fd_;
  MappedPages pages_;
};

// Whether the packet of this number in one of the directions of a node's link is lost.
bool is_lost(int64_t node, bool to_switch, uint64_t number, double loss);

class Relay {
 public:
  struct Ends {
    OwnedFd in_node, in_switch;  // TAP devices, by node
  };
  // `settings` must outlive it.
  Relay(std::vector<Ends> ends, const RelaySettings& settings);
  ~Relay();  // packets on the way are lost
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  // Of a link, both directions together. A connection waits while the last packet of one is lost.
  struct Counts {
    int64_t waiting = 0;        // packets that are not yet due
    int64_t taken = 0;          // packets of IPv4, since the link was made
    int64_t lost = 0;           // of those
    bool ends_in_loss = false;  // the last of a direction was lost
  };
  Counts counts(int64_t node) const;

 private:
  struct Shared {
    std::atomic<int64_t> waiting, taken, lost;
    std::atomic<bool> ends_in_loss;
  };
  void carry();

  std::vector<Ends> ends_;
  const RelaySettings& settings_;
  std::unique_ptr<Shared[]> counts_;  // by node
  OwnedFd stop_;
  std::thread thread_;
};

}  // namespace shardproof::sim::world
