// The nodes of a Gloo world and their network, on this machine:
//
//   network namespace    one per node            the switch
//                        lo, link0 10.77.a.b --- port<k>
//                                                bridge0
//
// The two ends of a link are a veth pair; a rate is a token bucket (tbf) at both. Delay and loss,
// which would need the kernel's netem, are not offered.
#pragma once

#include <chrono>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "sim/case/world_spec.h"
#include "sim/world/nodes/links.h"
#include "sim/world/nodes/namespaces.h"
#include "sim/world/process/worker_functions.h"

namespace shardproof::sim {

inline const std::string kLinkOfNode = "link0";
std::string port_of(int64_t node);  // of the switch
std::string address_of(int64_t node);

class NodeNetwork {
 public:
  // The rate of each link, 0: as fast as it can be. Throws Error(kBadInput): it cannot be made.
  NodeNetwork(int64_t nodes, double gb_per_s);

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
    std::vector<LinkState> ports;  // by node
    std::vector<bool> waits;       // whether bytes wait at one of the link's ends
  };
  double gb_per_s_;
  Namespaces spaces_;         // of the nodes, then that of the switch
  std::vector<Links> links_;  // by namespace
  std::deque<Look> looks_;
};

// Why this machine cannot have the nodes of such a world; "" when it can, or when it has none.
std::string why_no_nodes(const WorldSpec& world);

// The rate of the link of a node over Gloo.
double node_gb_per_s(const WorldSpec& world);

}  // namespace shardproof::sim
