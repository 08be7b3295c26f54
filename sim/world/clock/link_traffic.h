// Transfers under way in virtual time: those that use a link at once share it.
//
//   begin     when all members have made the call and the channel's transfer before is over
//   latency   of its messages: nobody shares it
//   in_node   its bytes within nodes, then
//   inter_node  its bytes between nodes
//
// Each rank has a port within its node and one out of it, or with inter_node.per_node each node has
// one for all its ranks; every port has a way out and a way in. A collective takes both ways of all
// its members' ports, a message the sender's way out and the receiver's way in. At a port that
// carries s streams at a moment, a transfer of m of them moves its bytes at m / s of the pace that
// it would have alone, and at the slowest pace of its ports. (m is 1, and TransferCost::streams at
// the port of a node.)
//
//   two of b bytes begin together            each takes latency + 2 b / bandwidth
//   one begins when the other has moved a    the first takes latency + (a + 2 (b - a)) / bandwidth
//
// The result depends on what is added, never on the order in which transfers of different channels
// are added.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "sim/world/clock/link_cost.h"

namespace shardproof::sim {

class LinkTraffic {
 public:
  struct Request {
    int64_t channel = 0;  // its transfers follow each other, in the order in which they are added
    double ready_us = 0;  // all members have made the call
    TransferCost cost = {};
    std::vector<int64_t> ranks = {};  // of a message: sender, receiver
    bool is_message = false;
  };
  struct Ended {
    int64_t transfer = 0;
    double begin_us = 0, end_us = 0;
  };

  LinkTraffic() = default;
  explicit LinkTraffic(const WorldSpec& world);

  // Gives the transfer's number. Nothing may be added that is ready before the last end that next()
  // told of; it would begin there.
  int64_t add(Request request);
  bool is_idle() const { return channels_.empty(); }
  // Goes on to the next end of a transfer: all that end at that moment. Nothing when idle.
  std::vector<Ended> next();

 private:
  enum class Phase { kWaiting, kLatency, kInNode, kInterNode, kOver };
  struct Transfer {
    int64_t number = 0;
    Request request;
    Phase phase = Phase::kWaiting;
    double begin_us = 0;
    double since_us = 0;  // the moment that left_us is of
    double left_us = 0;   // of this phase, at full pace
    double pace = 1;
    double phase_end_us() const { return since_us + left_us / pace; }
  };
  using Loads = std::map<int64_t, double>;  // streams, by way of a port

  std::vector<int64_t> ways(const Transfer& transfer) const;
  double streams(const Transfer& transfer) const;
  void set_paces();
  void queue_front(std::deque<Transfer>& channel, double free_us);
  static void enter_next_phase(Transfer& transfer, double now_us);

  int64_t ranks_per_node_ = 0;
  bool per_node_ = false;
  std::map<int64_t, std::deque<Transfer>> channels_;  // the front one is under way
  int64_t added_ = 0;
  double now_us_ = 0;
};

}  // namespace shardproof::sim
