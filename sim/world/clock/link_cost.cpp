// Formulas for one level and for two.
#include "sim/world/clock/link_cost.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace shardproof::sim::world {
namespace {

double rounds_of_tree(double count) { return std::ceil(std::log2(count)); }

// Whether every rank of a node sends to other nodes, or one rank for all.
bool all_leave_the_node(Op op) {
  return op == Op::kAllReduce || op == Op::kAllGather || op == Op::kReduceScatter ||
         op == Op::kAllToAll;
}

}  // namespace

LinkCost::Link LinkCost::link_of(const LinkSpec& spec) {
  const double bytes_per_us = spec.gb_per_s * 1e3;
  return {.latency_us = spec.latency_us, .us_per_byte = bytes_per_us > 0 ? 1 / bytes_per_us : 0};
}

LinkCost::LinkCost(const WorldSpec& world)
    : in_node_(link_of(world.in_node)),
      inter_node_(link_of(world.inter_node)),
      per_node_(world.inter_node.per_node),
      ranks_per_node_(world.ranks_per_node),
      stragglers_(world.stragglers) {}

bool LinkCost::is_free() const {
  const auto free = [](const Link& link) { return link.latency_us == 0 && link.us_per_byte == 0; };
  return free(in_node_) && free(inter_node_);
}

LinkCost::Amount LinkCost::one_level(const Link& link, Op op, double bytes, double count) {
  if (count < 2) return {};
  const Amount ring = link.message(bytes / count) * (count - 1);
  const Amount tree = link.message(bytes) * rounds_of_tree(count);
  const Amount spread = {rounds_of_tree(count) * link.latency_us,
                         (count - 1) / count * bytes * link.us_per_byte};
  switch (op) {
    case Op::kAllReduce:
      return cheaper(ring, tree) * 2;
    case Op::kAllGather:
    case Op::kReduceScatter:
    case Op::kAllToAll:
      return ring;
    case Op::kBroadcast:
      return cheaper(tree, spread + ring);
    case Op::kGather:
    case Op::kScatter:
      return spread;
    case Op::kSend:
    case Op::kRecv:
      return link.message(bytes);
    case Op::kBarrier:
    case Op::kMakeGroup:
      return {rounds_of_tree(count) * link.latency_us, 0};
  }
  return {};
}

TransferCost LinkCost::two_levels(Op op, double bytes, double per_node, double nodes) const {
  const double streams = all_leave_the_node(op) ? per_node : 1;
  const Link out = inter_node_.shared_by(per_node_ ? streams : 1);
  const auto within = [&](Op what, double amount) {
    return one_level(in_node_, what, amount, per_node);
  };
  Amount in_node, inter_node;
  switch (op) {
    case Op::kAllReduce:
      in_node = within(Op::kReduceScatter, bytes) + within(Op::kAllGather, bytes);
      inter_node = one_level(out, op, bytes / per_node, nodes);
      break;
    case Op::kAllGather:
    case Op::kReduceScatter:
      in_node = within(op, bytes);
      inter_node = one_level(out, op, bytes / per_node, nodes);
      break;
    case Op::kAllToAll: {
      const double ranks = per_node * nodes;
      in_node = in_node_.message(bytes / ranks) * (per_node - 1);
      inter_node = out.message(bytes / ranks) * (ranks - per_node);
      break;
    }
    case Op::kGather:
    case Op::kScatter:
      in_node = within(op, bytes / nodes);
      inter_node = one_level(out, op, bytes, nodes);
      break;
    case Op::kSend:
    case Op::kRecv:
      inter_node = out.message(bytes);
      break;
    case Op::kBroadcast:
    case Op::kBarrier:
    case Op::kMakeGroup:
      in_node = within(op, bytes);
      inter_node = one_level(out, op, bytes, nodes);
      break;
  }
  return {.latency_us = in_node.latency_us + inter_node.latency_us,
          .in_node_us = in_node.bytes_us,
          .inter_node_us = inter_node.bytes_us,
          .streams = streams};
}

// The slowest member determines the pace of a collective.
double LinkCost::slowest(const std::vector<int64_t>& ranks) const {
  if (stragglers_.empty()) return 1;
  double factor = 0;
  for (const int64_t rank : ranks) {
    const auto found = std::ranges::find(stragglers_, rank, &StragglerSpec::rank);
    factor = std::max(factor, found == stragglers_.end() ? 1 : found->links);
  }
  return factor;
}

TransferCost LinkCost::collective(Op op, double bytes, const std::vector<int64_t>& ranks) const {
  std::map<int64_t, int64_t> on_node;
  for (const int64_t rank : ranks) ++on_node[ranks_per_node_ > 0 ? rank / ranks_per_node_ : 0];
  int64_t most = 0;
  for (const auto& [node, count] : on_node) most = std::max(most, count);
  const auto nodes = static_cast<double>(on_node.size());
  const auto per_node = static_cast<double>(most);
  TransferCost cost;
  if (on_node.size() == 1) {
    const Amount amount = one_level(in_node_, op, bytes, per_node);
    cost.latency_us = amount.latency_us;
    cost.in_node_us = amount.bytes_us;
  } else {
    cost = two_levels(op, bytes, per_node, nodes);
  }
  const double factor = slowest(ranks);
  cost.latency_us *= factor;
  cost.in_node_us *= factor;
  cost.inter_node_us *= factor;
  return cost;
}

}  // namespace shardproof::sim::world
