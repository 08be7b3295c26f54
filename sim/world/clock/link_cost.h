// The cost of a collective on the virtual clock: latency and bytes of its links.
//
// A message of b bytes over a link takes latency + b / bandwidth. With n ranks on a link:
//
//   ring    n - 1 rounds, each moves 1/n of the bytes from every rank to the next
//   tree    ceil(log2 n) rounds, each moves all bytes
//
//   all_reduce      the cheaper of two rings and two trees (reduce, then broadcast)
//   all_gather, reduce_scatter      one ring
//   all_to_all      n - 1 rounds, each moves 1/n of a rank's bytes (pairwise exchange)
//   broadcast       the cheaper of a tree, and a scatter with a ring after it
//   gather, scatter ceil(log2 n) latencies and (n-1)/n of the bytes at the root
//   barrier         ceil(log2 n) latencies;   message   one
//
// (R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
// MPICH", 2005.) A group of m ranks on each of k nodes works in two levels: all_reduce is
// reduce_scatter within the node, all_reduce of 1/m of the bytes between nodes, all_gather within;
// the other collectives likewise. Each rank has a link to its node's ranks and one out of the node.
// With inter_node.per_node, all ranks of a node share one link out of it: the m messages of a
// collective then take latency + m b / bandwidth each. link_traffic.h describes collectives that
// share a link.
#pragma once

#include <cstdint>
#include <vector>

#include "base/call.h"
#include "sim/case/world_spec.h"

namespace shardproof::sim::world {

// The cost of a transfer that shares no link.
struct TransferCost {
  double latency_us = 0;     // of consecutive messages
  double in_node_us = 0;     // of bytes within nodes
  double inter_node_us = 0;  // of bytes between nodes
  double streams = 1;        // messages that leave a node at the same time
  double total_us() const { return latency_us + in_node_us + inter_node_us; }
};

class LinkCost {
 public:
  LinkCost() = default;  // everything is free
  explicit LinkCost(const WorldSpec& world);

  // `bytes` are those of one rank's input; for all_gather and gather, of all inputs.
  TransferCost collective(Op op, double bytes, const std::vector<int64_t>& ranks) const;
  // Microseconds from the moment when all `ranks` have made the call.
  double collective_us(Op op, double bytes, const std::vector<int64_t>& ranks) const {
    return collective(op, bytes, ranks).total_us();
  }
  bool is_free() const;  // no collective takes time

 private:
  struct Amount {
    double latency_us = 0, bytes_us = 0;
    double total_us() const { return latency_us + bytes_us; }
    Amount operator*(double times) const { return {latency_us * times, bytes_us * times}; }
    Amount operator+(Amount more) const {
      return {latency_us + more.latency_us, bytes_us + more.bytes_us};
    }
  };
  struct Link {
    double latency_us = 0, us_per_byte = 0;
    Amount message(double bytes) const { return {latency_us, bytes * us_per_byte}; }
    Link shared_by(double streams) const { return {latency_us, us_per_byte * streams}; }
  };
  static Link link_of(const LinkSpec& spec);
  static Amount cheaper(Amount a, Amount b) { return b.total_us() < a.total_us() ? b : a; }
  static Amount one_level(const Link& link, Op op, double bytes, double count);
  TransferCost two_levels(Op op, double bytes, double per_node, double nodes) const;
  double slowest(const std::vector<int64_t>& ranks) const;

  Link in_node_, inter_node_;
  bool per_node_ = false;
  int64_t ranks_per_node_ = 0;  // 0: one node
  std::vector<StragglerSpec> stragglers_;
};

}  // namespace shardproof::sim::world
