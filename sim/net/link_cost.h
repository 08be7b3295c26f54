// What a collective costs on the virtual clock: latency and bytes of the links that it uses.
//
// One message of b bytes over a link takes latency + b / bandwidth. With n ranks that a link joins:
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
// the others likewise. Links are not shared: each rank has its own to its node's neighbours and its
// own out of the node, and two collectives at once do not slow each other down.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/net/collective_math.h"
#include "sim/scenario/case_spec.h"

namespace shardproof::sim {

class LinkCost {
 public:
  LinkCost() = default;  // everything is free
  explicit LinkCost(const WorldSpec& world);

  // Microseconds from the moment that all `ranks` are there. `bytes`: of the whole tensor, that is
  // of one rank's input; of all_gather and gather the sum over ranks.
  double collective_us(Motion motion, double bytes, const std::vector<int64_t>& ranks) const;

 private:
  struct Link {
    double latency_us = 0, us_per_byte = 0;
    double message(double bytes) const { return latency_us + bytes * us_per_byte; }
  };
  static Link link_of(const LinkSpec& spec);
  static double one_level(const Link& link, Motion motion, double bytes, double count);
  double two_levels(Motion motion, double bytes, double per_node, double nodes) const;
  double slowest(const std::vector<int64_t>& ranks) const;

  Link in_node_, inter_node_;
  int64_t ranks_per_node_ = 0;  // 0: one node
  std::vector<StragglerSpec> stragglers_;
};

}  // namespace shardproof::sim
