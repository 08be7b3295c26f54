#include "sim/world/nodes/node_entry.h"

#include <fmt/format.h>
#include <sched.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "base/error.h"
#include "base/mutex.h"
#include "sim/world/nodes/node_network.h"

namespace shardproof::sim::world {
namespace {

void enter(int space, int kind) {
  if (::setns(space, kind) == 0) return;
  throw InternalError(
      fmt::format("a rank cannot enter the namespace of its node: {}", std::strerror(errno)));
}

// Both ends of a node's link.
class LinkOfNode {
 public:
  LinkOfNode(const NodePlace& place, OwnedFd netlink_of_switch)
      : node_(place.node),
        gb_per_s_(place.gb_per_s),
        in_switch_(std::move(netlink_of_switch)),
        in_node_(Netlink::open_socket()) {
    if (place.relay < 0) return;
    relay_ = std::make_unique<RelaySettings>(OwnedFd(::dup(place.relay)));
    delay_ns_ = relay_->of(node_).delay_ns;
    loss_ = relay_->of(node_).loss;
  }

  std::string change(const FaultSpec& fault) {
    const Lock lock(mutex_);
    std::string effect = fmt::format("the link of node {} ({}) ", node_, address_of(node_));
    if (fault.kind == FaultKind::kCut) {
      in_switch_.set_up(port_of(node_), false);
      effect += "goes down";
    } else if (fault.kind == FaultKind::kLag) {
      relay_of(fault).delay_ns = delay_ns_ + static_cast<int64_t>(fault.seconds * 1e9);
      effect += fmt::format("delays each packet by {:g} s", fault.seconds);
    } else if (fault.kind == FaultKind::kLose) {
      relay_of(fault).loss = fault.loss;
      effect += fmt::format("loses {:g}% of its packets", 100 * fault.loss);
    } else {
      limit(fault.gb_per_s);
      effect += fmt::format("has a rate of {:g} GB/s", fault.gb_per_s);
    }
    if (fault.heal_s > 0) effect += fmt::format(" for {:g} s", fault.heal_s);
    return effect;
  }

  void heal(const FaultSpec& fault) {
    const Lock lock(mutex_);
    if (fault.kind == FaultKind::kCut) {
      in_switch_.set_up(port_of(node_), true);
    } else if (fault.kind == FaultKind::kLag) {
      relay_of(fault).delay_ns = delay_ns_;
    } else if (fault.kind == FaultKind::kLose) {
      relay_of(fault).loss = loss_;
    } else {
      limit(gb_per_s_);
    }
  }

 private:
  RelaySettings::Link& relay_of(const FaultSpec& fault) SHARDPROOF_REQUIRES(mutex_) {
    SHARDPROOF_ASSERT(relay_ != nullptr,
                      "a world with a fault " + name_of(fault.kind) + " has links without a relay");
    return relay_->of(node_);
  }

  void limit(double gb_per_s) SHARDPROOF_REQUIRES(mutex_) {
    in_node_.limit(kLinkOfNode, gb_per_s * 1e9);
    in_switch_.limit(port_of(node_), gb_per_s * 1e9);
  }

  Mutex mutex_;
  int64_t node_;
  double gb_per_s_;
  Links in_switch_ SHARDPROOF_GUARDED_BY(mutex_);
  Links in_node_ SHARDPROOF_GUARDED_BY(mutex_);
  // Null: the link is a cable.
  std::unique_ptr<RelaySettings> relay_ SHARDPROOF_GUARDED_BY(mutex_);
  int64_t delay_ns_ = 0;  // as the world began
  double loss_ = 0;
};

}  // namespace

ChangeLink enter_node(const NodePlace& place) {
  if (place.user >= 0) enter(place.user, CLONE_NEWUSER);
  enter(place.network_of_switch, CLONE_NEWNET);
  OwnedFd netlink_of_switch = Netlink::open_socket();
  enter(place.network, CLONE_NEWNET);
  const auto link = std::make_shared<LinkOfNode>(place, std::move(netlink_of_switch));
  return [link](const FaultSpec& fault) {
    std::string effect = link->change(fault);
    if (fault.heal_s > 0) {
      std::thread([link, fault] {
        std::this_thread::sleep_for(std::chrono::duration<double>(fault.heal_s));
        link->heal(fault);
      }).detach();
    }
    return effect;
  };
}

}  // namespace shardproof::sim::world
