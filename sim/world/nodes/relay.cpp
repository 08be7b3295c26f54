#include "sim/world/nodes/relay.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <new>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/seed.h"

namespace shardproof::sim::world {
namespace {

using std::chrono::nanoseconds;
using std::chrono::steady_clock;

constexpr size_t kLargestPacket = 64 * 1024;
constexpr size_t kMostWaiting = 16 * 1024;  // packets in one direction; further ones are lost

bool is_ipv4(const std::string& packet) {
  constexpr size_t kTypeAt = 12;
  return packet.size() > kTypeAt + 1 && packet[kTypeAt] == 0x08 && packet[kTypeAt + 1] == 0x00;
}

// One direction of a link.
struct Way {
  int64_t node;
  bool to_switch;
  int from, to;
  uint64_t number = 0;  // of the next packet
  int64_t lost = 0;
  bool last_is_lost = false;
  std::deque<std::pair<steady_clock::time_point, std::string>> packets = {};

  void take(const RelaySettings::Link& link, std::string& buffer) {
    for (;;) {
      const ssize_t got = ::read(from, buffer.data(), buffer.size());
      if (got <= 0) return;
      std::string packet = buffer.substr(0, static_cast<size_t>(got));
      if (is_ipv4(packet)) {
        last_is_lost = is_lost(node, to_switch, number++, link.loss);
        lost += last_is_lost;
        if (last_is_lost) continue;
      }
      if (packets.size() >= kMostWaiting) continue;
      packets.emplace_back(steady_clock::now() + nanoseconds(link.delay_ns), std::move(packet));
    }
  }

  // An end that is down takes nothing: the packet is lost, as on a cut cable.
  void give(steady_clock::time_point now) {
    while (!packets.empty() && packets.front().first <= now) {
      const std::string& packet = packets.front().second;
      [[maybe_unused]] const ssize_t put = ::write(to, packet.data(), packet.size());
      packets.pop_front();
    }
  }
};

}  // namespace

RelaySettings::RelaySettings(int64_t nodes)
    : RelaySettings(new_memory("shardproof-relay", static_cast<size_t>(nodes) * sizeof(Link),
                               "the links of nodes")) {
  for (int64_t node = 0; node < nodes; ++node) new (&of(node)) Link{{0}, {0}};
}

RelaySettings::RelaySettings(OwnedFd fd)
    : fd_(std::move(fd)), pages_(MappedPages::of_file(fd_.get(), true)) {
  static_assert(std::atomic<double>::is_always_lock_free);
  if (pages_.data() == nullptr) throw InternalError("the settings of links cannot be mapped");
}

bool is_lost(int64_t node, bool to_switch, uint64_t number, double loss) {
  const uint64_t stream = stream_seed(node, to_switch ? "lost to the switch" : "lost to the node");
  return static_cast<double>(mix_bits(stream + number) >> 11) * 0x1p-53 < loss;
}

Relay::Relay(std::vector<Ends> ends, const RelaySettings& settings)
    : ends_(std::move(ends)),
      settings_(settings),
      counts_(new Shared[ends_.size()]{}),
      stop_(::eventfd(0, EFD_CLOEXEC)),
      thread_([this] { carry(); }) {}

Relay::~Relay() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

Relay::Counts Relay::counts(int64_t node) const {
  const Shared& shared = counts_[static_cast<size_t>(node)];
  return {shared.waiting, shared.taken, shared.lost, shared.ends_in_loss};
}

void Relay::carry() {
  std::vector<Way> ways;
  std::vector<pollfd> watched;
  for (size_t at = 0; at < ends_.size(); ++at) {
    const int inside = ends_[at].in_node.get(), outside = ends_[at].in_switch.get();
    const auto node = static_cast<int64_t>(at);
    ways.push_back({.node = node, .to_switch = true, .from = inside, .to = outside});
    ways.push_back({.node = node, .to_switch = false, .from = outside, .to = inside});
    watched.push_back({inside, POLLIN, 0});
    watched.push_back({outside, POLLIN, 0});
  }
  watched.push_back({stop_.get(), POLLIN, 0});
  std::string buffer(kLargestPacket, '\0');
  for (;;) {
    auto next = steady_clock::time_point::max();
    for (const Way& way : ways) {
      if (!way.packets.empty()) next = std::min(next, way.packets.front().first);
    }
    const auto left = std::max(nanoseconds(0), nanoseconds(next - steady_clock::now()));
    const timespec patience{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    const bool waits = next != steady_clock::time_point::max();
    ::ppoll(watched.data(), watched.size(), waits ? &patience : nullptr, nullptr);
    if (watched.back().revents != 0) return;
    for (size_t i = 0; i < ways.size(); ++i) {
      if (watched[i].revents != 0) ways[i].take(settings_.of(ways[i].node), buffer);
    }
    const auto now = steady_clock::now();
    for (size_t i = 0; i < ways.size(); ++i) {
      ways[i].give(now);
      if (i % 2 == 0) continue;
      const Way &up = ways[i - 1], &down = ways[i];
      Shared& shared = counts_[i / 2];
      shared.waiting = static_cast<int64_t>(up.packets.size() + down.packets.size());
      shared.taken = static_cast<int64_t>(up.number + down.number);
      shared.lost = up.lost + down.lost;
      shared.ends_in_loss = up.last_is_lost || down.last_is_lost;
    }
  }
}

}  // namespace shardproof::sim::world
