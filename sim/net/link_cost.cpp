// The formulas, on one level and on two.
#include "sim/net/link_cost.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace shardproof::sim {
namespace {

double rounds_of_tree(double count) { return std::ceil(std::log2(count)); }

}  // namespace

LinkCost::Link LinkCost::link_of(const LinkSpec& spec) {
  const double bytes_per_us = spec.gb_per_s * 1e3;
  return {.latency_us = spec.latency_us, .us_per_byte = bytes_per_us > 0 ? 1 / bytes_per_us : 0};
}

LinkCost::LinkCost(const WorldSpec& world)
    : in_node_(link_of(world.in_node)),
      inter_node_(link_of(world.inter_node)),
      ranks_per_node_(world.ranks_per_node),
      stragglers_(world.stragglers) {}

double LinkCost::one_level(const Link& link, Motion motion, double bytes, double count) {
  if (count < 2) return 0;
  const double ring = (count - 1) * link.message(bytes / count);
  const double tree = rounds_of_tree(count) * link.message(bytes);
  const double spread =
      rounds_of_tree(count) * link.latency_us + (count - 1) / count * bytes * link.us_per_byte;
  switch (motion) {
    case Motion::kAllReduce:
      return 2 * std::min(ring, tree);
    case Motion::kAllGather:
    case Motion::kReduceScatter:
    case Motion::kAllToAll:
      return ring;
    case Motion::kBroadcast:
      return std::min(tree, spread + ring);
    case Motion::kGather:
    case Motion::kScatter:
      return spread;
    case Motion::kMessage:
      return link.message(bytes);
    case Motion::kBarrier:
      return rounds_of_tree(count) * link.latency_us;
  }
  return 0;
}

double LinkCost::two_levels(Motion motion, double bytes, double per_node, double nodes) const {
  const auto within = [&](Motion what, double amount) {
    return one_level(in_node_, what, amount, per_node);
  };
  const auto between = [&](Motion what, double amount) {
    return one_level(inter_node_, what, amount, nodes);
  };
  switch (motion) {
    case Motion::kAllReduce:
      return within(Motion::kReduceScatter, bytes) + between(motion, bytes / per_node) +
             within(Motion::kAllGather, bytes);
    case Motion::kAllGather:
    case Motion::kReduceScatter:
      return within(motion, bytes) + between(motion, bytes / per_node);
    case Motion::kAllToAll: {
      const double ranks = per_node * nodes;
      return (per_node - 1) * in_node_.message(bytes / ranks) +
             (ranks - per_node) * inter_node_.message(bytes / ranks);
    }
    case Motion::kGather:
    case Motion::kScatter:
      return within(motion, bytes / nodes) + between(motion, bytes);
    case Motion::kMessage:
      return inter_node_.message(bytes);
    case Motion::kBroadcast:
    case Motion::kBarrier:
      return within(motion, bytes) + between(motion, bytes);
  }
  return 0;
}

// A ring is as slow as its slowest member.
double LinkCost::slowest(const std::vector<int64_t>& ranks) const {
  double factor = 1;
  for (const StragglerSpec& straggler : stragglers_) {
    const bool member = std::find(ranks.begin(), ranks.end(), straggler.rank) != ranks.end();
    if (member) factor = std::max(factor, straggler.links);
  }
  return factor;
}

double LinkCost::collective_us(Motion motion, double bytes,
                               const std::vector<int64_t>& ranks) const {
  std::map<int64_t, int64_t> on_node;
  for (const int64_t rank : ranks) ++on_node[ranks_per_node_ > 0 ? rank / ranks_per_node_ : 0];
  int64_t most = 0;
  for (const auto& [node, count] : on_node) most = std::max(most, count);
  const auto nodes = static_cast<double>(on_node.size());
  const auto per_node = static_cast<double>(most);
  const double time = on_node.size() == 1 ? one_level(in_node_, motion, bytes, per_node)
                                          : two_levels(motion, bytes, per_node, nodes);
  return time * slowest(ranks);
}

}  // namespace shardproof::sim
