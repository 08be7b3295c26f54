// The nodes of a Gloo world and their network, on this machine:
//
//   network namespace    one per node            the switch
//                        lo, link0 10.77.a.b --- port<k>
//                                                bridge0
//
// The two ends of a link are a veth pair; a rate is a token bucket (tbf) at both. In a world with
// delays or loss they are TAP devices, between which this process carries the packets (relay.h).
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/world/nodes/links.h"
#include "sim/world/nodes/namespaces.h"
#include "sim/world/nodes/relay.h"
#include "sim/world/process/worker_functions.h"

namespace shardproof::sim::world {

inline const std::string kLinkOfNode = "link0";
std::string port_of(int64_t node);  // of the switch
std::string address_of(int64_t node);

// What each link of a world is like.
struct NodeLinks {
  double gb_per_s = 0;   // 0: as fast as it can be
  double delay_s = 0;    // of a packet on one link, in one direction
  double loss = 0;       // share of the packets, in each direction
  bool relayed = false;  // delay and loss can be, now or by a fault
  auto operator<=>(const NodeLinks&) const = default;
};
// Those of a case over Gloo.
NodeLinks links_of_nodes(const CaseSpec& spec);

class NodeNetwork {
 public:
  // Throws Error(kBadInput): it cannot be made.
  NodeNetwork(int64_t nodes, const NodeLinks& links);

  NodePlace place(int64_t node) const;  // valid as long as this

  // Takes the state of all links. Call it again and again while ranks run.
  void look();
  // What the last seconds showed of links that keep ranks waiting.
  struct Trouble {
    int64_t node = 0;
    std::string text;  // "the link of node 2 (10.77.0.3) is down"
  };
  std::vector<Trouble> troubles();

 private:
  struct Look {
    std::chrono::steady_clock::time_point at;
    std::vector<LinkState> ports;        // by node
    std::vector<bool> waits;             // whether bytes wait at one of the link's ends
    std::vector<Relay::Counts> packets;  // none where the links are cables
  };
  void relay(int64_t nodes, const NodeLinks& links);

  double gb_per_s_;
  Namespaces spaces_;         // of the nodes, then that of the switch
  std::vector<Links> links_;  // by namespace
  std::unique_ptr<RelaySettings> settings_;
  std::unique_ptr<Relay> relay_;  // null: the links are cables
  std::deque<Look> looks_;
};

// Why this machine cannot have the nodes of such a case; "" when it can, or when it has none.
std::string why_no_nodes(const CaseSpec& spec);

}  // namespace shardproof::sim::world
