#include "sim/world/nodes/node_network.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof::sim::world {
namespace {

using std::chrono::steady_clock;

const std::string kBridge = "bridge0", kLoopback = "lo";
constexpr uint8_t kPrefixBits = 16;
constexpr int64_t kAddressesInPart = 250;
constexpr int64_t kMostNodes = 250;
// How long a look at the links is kept.
constexpr double kRemembered_s = 2;

std::string amount(double bytes) {
  return bytes < 1e6 ? fmt::format("{:.1f} kB", bytes / 1e3)
                     : fmt::format("{:.1f} MB", bytes / 1e6);
}

std::vector<LinkState> by_name(std::vector<LinkState> states,
                               const std::vector<std::string>& names) {
  std::vector<LinkState> sorted;
  for (const std::string& name : names) {
    const auto found = std::ranges::find(states, name, &LinkState::name);
    sorted.push_back(found == states.end() ? LinkState{.name = name} : *found);
  }
  return sorted;
}

}  // namespace

std::string port_of(int64_t node) { return fmt::format("port{}", node); }

std::string address_of(int64_t node) {
  return fmt::format("10.77.{}.{}", node / kAddressesInPart, node % kAddressesInPart + 1);
}

NodeLinks links_of_nodes(const CaseSpec& spec) {
  const LinkSpec& link = spec.world.inter_node;
  NodeLinks links{.gb_per_s = spec.world.node_gb_per_s(),
                  .delay_s = link.latency_us / 2e6,  // a message takes two links
                  .loss = link.loss};
  links.relayed = link.latency_us > 0 || link.loss > 0 ||
                  std::any_of(spec.faults.begin(), spec.faults.end(),
                              [](const FaultSpec& fault) { return is_of_packets(fault.kind); });
  return links;
}

NodeNetwork::NodeNetwork(int64_t nodes, const NodeLinks& links) : gb_per_s_(links.gb_per_s) {
  if (nodes > kMostNodes) {
    throw_bad_input(fmt::format("{} nodes over Gloo, at most {} can be", nodes, kMostNodes),
                    "put more ranks on each node, or take --backend emulated");
  }
  std::vector<std::vector<std::string>> taps(static_cast<size_t>(nodes) + 1);
  for (int64_t node = 0; links.relayed && node < nodes; ++node) {
    taps[static_cast<size_t>(node)] = {kLinkOfNode};
    taps.back().push_back(port_of(node));
  }
  spaces_ = make_namespaces(taps);
  for (Namespaces::Network& network : spaces_.networks) {
    links_.emplace_back(std::move(network.netlink));
  }
  Links& in_switch = links_.back();
  in_switch.add_bridge(kBridge);
  in_switch.set_up(kBridge, true);
  for (int64_t node = 0; node < nodes; ++node) {
    const auto at = static_cast<size_t>(node);
    Links& in_node = links_[at];
    if (!links.relayed) {
      in_switch.add_cable(port_of(node), kLinkOfNode, spaces_.networks[at].space.get());
    }
    in_switch.join(port_of(node), kBridge);
    in_switch.set_up(port_of(node), true);
    in_node.set_up(kLoopback, true);
    in_node.set_address(kLinkOfNode, address_of(node), kPrefixBits);
    in_node.set_up(kLinkOfNode, true);
    in_node.limit(kLinkOfNode, links.gb_per_s * 1e9);
    in_switch.limit(port_of(node), links.gb_per_s * 1e9);
  }
  if (links.relayed) relay(nodes, links);
}

void NodeNetwork::relay(int64_t nodes, const NodeLinks& links) {
  settings_ = std::make_unique<RelaySettings>(nodes);
  std::vector<Relay::Ends> ends;
  for (int64_t node = 0; node < nodes; ++node) {
    const auto at = static_cast<size_t>(node);
    settings_->of(node).delay_ns = static_cast<int64_t>(links.delay_s * 1e9);
    settings_->of(node).loss = links.loss;
    ends.push_back({.in_node = std::move(spaces_.networks[at].taps.at(0)),
                    .in_switch = std::move(spaces_.networks.back().taps.at(at))});
  }
  relay_ = std::make_unique<Relay>(std::move(ends), *settings_);
}

NodePlace NodeNetwork::place(int64_t node) const {
  const auto& networks = spaces_.networks;
  return {.node = node,
          .network = networks[static_cast<size_t>(node)].space.get(),
          .network_of_switch = networks.back().space.get(),
          .user = spaces_.user.get(),
          .relay = settings_ ? settings_->fd() : -1,
          .gb_per_s = gb_per_s_};
}

void NodeNetwork::look() {
  const auto now = steady_clock::now();
  std::vector<std::string> names;
  for (size_t node = 0; node + 1 < links_.size(); ++node) {
    names.push_back(port_of(static_cast<int64_t>(node)));
  }
  Look look{.at = now, .ports = by_name(links_.back().states(), names), .waits = {}, .packets = {}};
  for (size_t node = 0; node < names.size(); ++node) {
    const LinkState own = by_name(links_[node].states(), {kLinkOfNode}).front();
    if (relay_) look.packets.push_back(relay_->counts(static_cast<int64_t>(node)));
    const bool on_the_way = relay_ && look.packets.back().waiting > 0;
    look.waits.push_back(own.waiting_bytes + look.ports[node].waiting_bytes > 0 || on_the_way);
  }
  looks_.push_back(std::move(look));
  const std::chrono::duration<double> remembered(kRemembered_s);
  while (looks_.size() > 2 && now - looks_[1].at > remembered) looks_.pop_front();
}

std::vector<NodeNetwork::Trouble> NodeNetwork::troubles() {
  look();
  const Look &first = looks_.front(), &last = looks_.back();
  const double seconds = std::chrono::duration<double>(last.at - first.at).count();
  std::vector<Trouble> down, slow, lossy;
  for (size_t at = 0; at < last.ports.size(); ++at) {
    const auto node = static_cast<int64_t>(at);
    const std::string link = fmt::format("the link of node {} ({})", node, address_of(node));
    if (!last.ports[at].up) down.push_back({node, link + " is down"});
    if (!last.packets.empty() && last.packets[at].ends_in_loss) {
      const int64_t taken = last.packets[at].taken - first.packets[at].taken;
      const int64_t lost = last.packets[at].lost - first.packets[at].lost;
      lossy.push_back(
          {node, lost > 0 ? fmt::format("{} loses packets: {} of {} in {:.1f} s, and the last",
                                        link, lost, taken, seconds)
                          : fmt::format("{} loses packets: its last, more than {:.1f} s ago", link,
                                        seconds)});
    }
    const auto waited = std::count_if(looks_.begin(), looks_.end(),
                                      [at](const Look& look) { return look.waits[at]; });
    if (2 * waited <= static_cast<int64_t>(looks_.size())) continue;
    const auto passed = static_cast<double>(last.ports[at].bytes - first.ports[at].bytes);
    slow.push_back({node, fmt::format("{} is slow: {} passed in {:.1f} s, and more waited", link,
                                      amount(passed), seconds)});
  }
  if (!down.empty()) return down;
  return slow.empty() ? lossy : slow;
}

std::string why_no_nodes(const CaseSpec& spec) {
  if (spec.world.backend != Backend::kGloo || spec.world.ranks_per_node == 0) return "";
  try {
    NodeNetwork(1, links_of_nodes(spec));
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace shardproof::sim::world
