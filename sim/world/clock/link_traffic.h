// Transfers in virtual time; those that use a link at the same time share it.
//
//   begin     when all members have made the call and the channel's previous transfer has ended
//   latency   of its messages, which is not shared
//   in_node   its bytes within nodes, then
//   inter_node  its bytes between nodes
//
// Each rank has a port within its node and one out of it; with inter_node.per_node, all ranks of a
// node share one port out of it. Every port has a way out and a way in. A collective uses both ways
// of all its members' ports, a message the sender's way out and the receiver's way in. At a port
// that carries s streams, a transfer of m of them moves its bytes at m / s of the pace that
// it would have alone, and at the slowest pace of its ports. (m is 1, and TransferCost::streams at
// the port of a node.)
//
//   two of b bytes begin together            each takes latency + 2 b / bandwidth
//   one begins when the other has moved a    the first takes latency + (a + 2 (b - a)) / bandwidth
//
// The result does not depend on the order in which transfers of different channels are added.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "sim/world/clock/link_cost.h"

namespace shardproof::sim::world {

class LinkTraffic {
 public:
  struct Request {
    int64_t channel = 0;  // its transfers run one after another, in the order of their addition
    double ready_us = 0;  // when all members have made the call
    TransferCost cost = {};
    std::vector<int64_t> ranks = {};  // for a message: sender, receiver
    bool is_message = false;
  };
  struct Ended {
    int64_t transfer = 0;
    double begin_us = 0, end_us = 0;
  };

  LinkTraffic() = default;
  explicit LinkTraffic(const WorldSpec& world);

  // Returns the transfer's number. `ready_us` may not be before the last end that next() returned;
  // an earlier transfer would begin there.
  int64_t add(Request request);
  bool is_idle() const { return channels_.empty(); }
  // Advances to the next end of a transfer; returns all that end then, or nothing when idle.
  std::vector<Ended> next();

 private:
  enum class Phase { kWaiting, kLatency, kInNode, kInterNode, kOver };
  struct Transfer {
    int64_t number = 0;
    Request request;
    Phase phase = Phase::kWaiting;
    double begin_us = 0;
    double since_us = 0;  // when left_us was computed
    double left_us = 0;   // of this phase, at full pace
    double pace = 1;
    double phase_end_us() const { return since_us + left_us / pace; }
  };
  using Loads = std::map<int64_t, double>;  // streams, by the number of a way

  std::vector<int64_t> ways(const Transfer& transfer) const;
  double streams(const Transfer& transfer) const;
  void set_paces();
  void queue_front(std::deque<Transfer>& channel, double free_us);
  static void enter_next_phase(Transfer& transfer, double now_us);

  int64_t ranks_per_node_ = 0;
  bool per_node_ = false;
  std::map<int64_t, std::deque<Transfer>> channels_;  // the front one is in progress
  int64_t added_ = 0;
  double now_us_ = 0;
};

}  // namespace shardproof::sim::world
