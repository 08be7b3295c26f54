// Simulates from event to event: when a phase of a transfer ends, the paces of others change.
#include "sim/world/clock/link_traffic.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace shardproof::sim::world {

LinkTraffic::LinkTraffic(const WorldSpec& world)
    : ranks_per_node_(world.ranks_per_node), per_node_(world.inter_node.per_node) {}

void LinkTraffic::queue_front(std::deque<Transfer>& channel, double free_us) {
  Transfer& transfer = channel.front();
  transfer.begin_us = std::max({transfer.request.ready_us, free_us, now_us_});
  transfer.since_us = transfer.begin_us;
}

int64_t LinkTraffic::add(Request request) {
  if (is_idle()) now_us_ = 0;  // no transfer exists that a later one could precede
  std::deque<Transfer>& channel = channels_[request.channel];
  channel.push_back({.number = added_, .request = std::move(request)});
  if (channel.size() == 1) queue_front(channel, 0);
  return added_++;
}

// The way out of a port has an even number, and its way in the next odd one.
std::vector<int64_t> LinkTraffic::ways(const Transfer& transfer) const {
  const bool of_nodes = transfer.phase == Phase::kInterNode && per_node_ && ranks_per_node_ > 0;
  std::vector<int64_t> found;
  const std::vector<int64_t>& ranks = transfer.request.ranks;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int64_t port = of_nodes ? ranks[i] / ranks_per_node_ : ranks[i];
    if (!transfer.request.is_message || i == 0) found.push_back(2 * port);
    if (!transfer.request.is_message || i == 1) found.push_back(2 * port + 1);
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

double LinkTraffic::streams(const Transfer& transfer) const {
  return transfer.phase == Phase::kInterNode && per_node_ ? transfer.request.cost.streams : 1;
}

void LinkTraffic::set_paces() {
  Loads in_node, inter_node;
  const auto loads_of = [&](const Transfer& transfer) -> Loads* {
    if (transfer.phase == Phase::kInNode) return &in_node;
    return transfer.phase == Phase::kInterNode ? &inter_node : nullptr;
  };
  for (const auto& [channel, queue] : channels_) {
    const Transfer& transfer = queue.front();
    Loads* loads = loads_of(transfer);
    if (loads == nullptr) continue;
    for (const int64_t way : ways(transfer)) (*loads)[way] += streams(transfer);
  }
  for (auto& [channel, queue] : channels_) {
    Transfer& transfer = queue.front();
    double pace = 1;
    if (const Loads* loads = loads_of(transfer)) {
      for (const int64_t way : ways(transfer)) {
        pace = std::min(pace, streams(transfer) / loads->at(way));
      }
    }
    if (pace == transfer.pace) continue;
    transfer.left_us -= (now_us_ - transfer.since_us) * transfer.pace;
    transfer.since_us = now_us_;
    transfer.pace = pace;
  }
}

// Enters the next phase that takes time.
void LinkTraffic::enter_next_phase(Transfer& transfer, double now_us) {
  const TransferCost& cost = transfer.request.cost;
  transfer.since_us = now_us;
  transfer.left_us = 0;
  transfer.pace = 1;
  while (transfer.phase != Phase::kOver && transfer.left_us <= 0) {
    transfer.phase = static_cast<Phase>(static_cast<int>(transfer.phase) + 1);
    if (transfer.phase == Phase::kLatency) transfer.left_us = cost.latency_us;
    if (transfer.phase == Phase::kInNode) transfer.left_us = cost.in_node_us;
    if (transfer.phase == Phase::kInterNode) transfer.left_us = cost.inter_node_us;
  }
}

std::vector<LinkTraffic::Ended> LinkTraffic::next() {
  std::vector<Ended> ended;
  while (ended.empty() && !is_idle()) {
    set_paces();
    double event_us = std::numeric_limits<double>::infinity();
    for (const auto& [channel, queue] : channels_) {
      event_us = std::min(event_us, queue.front().phase_end_us());
    }
    now_us_ = std::max(now_us_, event_us);
    for (auto channel = channels_.begin(); channel != channels_.end();) {
      std::deque<Transfer>& queue = channel->second;
      Transfer& transfer = queue.front();
      if (transfer.phase_end_us() <= event_us) enter_next_phase(transfer, now_us_);
      if (transfer.phase != Phase::kOver) {
        ++channel;
        continue;
      }
      ended.push_back(
          {.transfer = transfer.number, .begin_us = transfer.begin_us, .end_us = now_us_});
      queue.pop_front();
      if (queue.empty()) {
        channel = channels_.erase(channel);
      } else {
        queue_front(queue, now_us_);
        ++channel;
      }
    }
  }
  return ended;
}

}  // namespace shardproof::sim::world
