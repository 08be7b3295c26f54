// The virtual clock beside SimGrid (Debian: libsimgrid-dev): each collective's algorithm of
// sim/world/clock/link_cost.h, message by message over SimGrid's links, and the formula's time.
//
//   shardproof-simgrid
//
// SimGrid's factors that fit TCP are off. A way into a port has no latency: a message pays it once.
// Exit status 1 when a ratio is off by more than 1%.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <simgrid/s4u.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "sim/world/clock/link_cost.h"

namespace shardproof::sim {
namespace {

namespace sg4 = simgrid::s4u;
using Ranks = std::vector<int64_t>;

// Ports of ranks and of nodes as SimGrid's links; every pair of ranks has a route of its own.
class Platform {
 public:
  Platform(const WorldSpec& world, int64_t ranks) {
    auto* zone = sg4::create_full_zone("world");
    for (int64_t rank = 0; rank < ranks; ++rank) {
      hosts_.push_back(zone->create_host(fmt::format("rank{}", rank), 1e9));
    }
    const int64_t per_node = world.ranks_per_node > 0 ? world.ranks_per_node : ranks;
    const bool shared = world.inter_node.per_node;
    const auto ports = [&](const char* name, const LinkSpec& spec, int64_t count) {
      std::vector<std::pair<sg4::Link*, sg4::Link*>> made;
      for (int64_t i = 0; i < count; ++i) {
        auto* out = zone->create_link(fmt::format("{}_out{}", name, i), spec.gb_per_s * 1e9);
        auto* in = zone->create_link(fmt::format("{}_in{}", name, i), spec.gb_per_s * 1e9);
        made.emplace_back(out->set_latency(spec.latency_us * 1e-6), in->set_latency(0));
      }
      return made;
    };
    const auto inside = ports("inside", world.in_node, ranks);
    const auto outside = ports("outside", world.inter_node, shared ? ranks / per_node : ranks);
    const auto port = [&](int64_t rank) { return size_t(shared ? rank / per_node : rank); };
    for (int64_t from = 0; from < ranks; ++from) {
      for (int64_t to = 0; to < ranks; ++to) {
        if (from == to) continue;
        const bool near = from / per_node == to / per_node;
        sg4::Link* out = near ? inside[size_t(from)].first : outside[port(from)].first;
        sg4::Link* in = near ? inside[size_t(to)].second : outside[port(to)].second;
        zone->add_route(hosts_[size_t(from)]->get_netpoint(), hosts_[size_t(to)]->get_netpoint(),
                        nullptr, nullptr, {sg4::LinkInRoute(out), sg4::LinkInRoute(in)}, false);
      }
    }
    zone->seal();
  }
  sg4::Host* host(int64_t rank) const { return hosts_[size_t(rank)]; }

 private:
  std::vector<sg4::Host*> hosts_;
};

// What one rank does: messages go through a mailbox of each pair.
struct Rank {
  int64_t self = 0;
  static sg4::Mailbox* box(int64_t from, int64_t to) {
    return sg4::Mailbox::by_name(fmt::format("{} to {}", from, to));
  }
  static void send(int64_t from, int64_t to, double bytes) {
    static int payload;
    box(from, to)->put(&payload, static_cast<uint64_t>(bytes));
  }
  static void receive(int64_t from, int64_t to) { box(from, to)->get<int>(); }
  void exchange(int64_t to, int64_t from, double bytes) const {
    int payload = 0;
    int* got = nullptr;
    auto out = box(self, to)->put_async(&payload, static_cast<uint64_t>(bytes));
    auto in = box(from, self)->get_async(&got);
    out->wait();
    in->wait();
  }
  size_t place(const Ranks& ranks) const {
    return size_t(std::find(ranks.begin(), ranks.end(), self) - ranks.begin());
  }
  // n - 1 rounds, each passes 1/n of the bytes to the next.
  void ring(const Ranks& ranks, double bytes) const {
    const size_t count = ranks.size(), at = place(ranks);
    for (size_t round = 1; round < count; ++round) {
      exchange(ranks[(at + 1) % count], ranks[(at + count - 1) % count], bytes / double(count));
    }
  }
  // n - 1 rounds, in round k with the ranks that are k places away.
  void pairwise(const Ranks& ranks, double bytes) const {
    const size_t count = ranks.size(), at = place(ranks);
    for (size_t round = 1; round < count; ++round) {
      exchange(ranks[(at + round) % count], ranks[(at + count - round) % count],
               bytes / double(count));
    }
  }
  // A binomial tree from the first rank: who has the data doubles in each round. `bytes(round)`
  // are those of a message.
  void tree(const Ranks& ranks, const std::function<double(size_t)>& bytes) const {
    const size_t count = ranks.size(), at = place(ranks);
    size_t rounds = 0;
    while ((size_t{1} << rounds) < count) ++rounds;
    for (size_t round = 0; round < rounds; ++round) {
      const size_t have = size_t{1} << round;
      if (at < have && at + have < count) send(self, ranks[at + have], bytes(round));
      if (at >= have && at < 2 * have) receive(ranks[at - have], self);
    }
  }
  void tree(const Ranks& ranks, double bytes) const {
    tree(ranks, [=](size_t) { return bytes; });
  }
  // The same messages the other way, in reverse order.
  void reduce_tree(const Ranks& ranks, double bytes) const {
    const size_t count = ranks.size(), at = place(ranks);
    for (size_t have = std::bit_ceil(count) / 2; have > 0; have /= 2) {
      if (at >= have && at < 2 * have) send(self, ranks[at - have], bytes);
      if (at < have && at + have < count) receive(ranks[at + have], self);
    }
  }
  // From the first rank to all: half of what is left to each.
  void scatter(const Ranks& ranks, double bytes) const {
    tree(ranks, [=](size_t round) { return bytes / double(size_t{2} << round); });
  }
};

using Algorithm = std::function<void(const Rank&)>;

struct Row {
  std::string what;
  Op op;
  double bytes;
  std::vector<Algorithm> algorithms;  // the cheapest counts
};

// In a process of its own: an engine simulates once.
double simulated_us(const WorldSpec& world, int64_t ranks, const Algorithm& algorithm) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    int argc = 2;
    char name[] = "simgrid", quiet[] = "--log=root.thres:warning";
    char* argv[] = {name, quiet, nullptr};
    sg4::Engine engine(&argc, argv);
    for (const char* setting :
         {"network/model:CM02", "network/TCP-gamma:0", "network/weight-S:0",
          "network/crosstraffic:0", "network/latency-factor:1", "network/bandwidth-factor:1"}) {
      sg4::Engine::set_config(setting);
    }
    const Platform platform(world, ranks);
    for (int64_t rank = 0; rank < ranks; ++rank) {
      sg4::Actor::create("rank", platform.host(rank), [&, rank] { algorithm(Rank{rank}); });
    }
    engine.run();
    const double us = sg4::Engine::get_clock() * 1e6;
    _exit(write(ends[1], &us, sizeof us) == sizeof us ? 0 : 1);
  }
  double us = 0;
  close(ends[1]);
  const bool whole = read(ends[0], &us, sizeof us) == sizeof us;
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (!whole || status != 0) throw std::runtime_error("SimGrid did not end");
  return us;
}

std::vector<Row> one_level_rows(const Ranks& all, double bytes) {
  std::vector<Row> rows{
      {"all_reduce",
       Op::kAllReduce,
       bytes,
       {[=](const Rank& rank) { rank.ring(all, bytes), rank.ring(all, bytes); },
        [=](const Rank& rank) { rank.reduce_tree(all, bytes), rank.tree(all, bytes); }}},
      {"all_gather", Op::kAllGather, bytes, {[=](const Rank& rank) { rank.ring(all, bytes); }}},
      {"all_to_all", Op::kAllToAll, bytes, {[=](const Rank& rank) { rank.pairwise(all, bytes); }}},
  };
  if (std::has_single_bit(all.size())) {  // the formulas of other sizes are bounds
    rows.push_back(
        {"scatter", Op::kScatter, bytes, {[=](const Rank& rank) { rank.scatter(all, bytes); }}});
    rows.push_back({"broadcast",
                    Op::kBroadcast,
                    bytes,
                    {[=](const Rank& rank) { rank.tree(all, bytes); },
                     [=](const Rank& rank) { rank.scatter(all, bytes), rank.ring(all, bytes); }}});
  }
  return rows;
}

std::vector<Row> two_level_rows(int64_t nodes, int64_t per_node, double bytes) {
  const auto near = [=](const Rank& rank) {
    Ranks ranks;
    for (int64_t i = 0; i < per_node; ++i) ranks.push_back(rank.self / per_node * per_node + i);
    return ranks;
  };
  const auto peers = [=](const Rank& rank) {  // one of each node
    Ranks ranks;
    for (int64_t node = 0; node < nodes; ++node) {
      ranks.push_back(node * per_node + rank.self % per_node);
    }
    return ranks;
  };
  const double part = bytes / double(per_node);
  const auto reduce = [=](const Rank& rank, bool rings) {
    rank.ring(near(rank), bytes);
    if (rings) rank.ring(peers(rank), part), rank.ring(peers(rank), part);
    if (!rings) rank.reduce_tree(peers(rank), part), rank.tree(peers(rank), part);
    rank.ring(near(rank), bytes);
  };
  return {
      {"all_reduce",
       Op::kAllReduce,
       bytes,
       {[=](const Rank& rank) { reduce(rank, true); },
        [=](const Rank& rank) { reduce(rank, false); }}},
      {"all_gather", Op::kAllGather, bytes, {[=](const Rank& rank) {
         rank.ring(peers(rank), part), rank.ring(near(rank), bytes);
       }}},
      {"all_to_all", Op::kAllToAll, bytes, {[=](const Rank& rank) {
         const int64_t node = rank.self / per_node, place = rank.self % per_node;
         const double message = bytes / double(nodes * per_node);
         for (int64_t far = 0; far < nodes; ++far) {
           for (int64_t i = far == 0 ? 1 : 0; i < per_node; ++i) {
             const auto at = [&](int64_t step, int64_t shift) {
               return (node + step + nodes) % nodes * per_node +
                      (place + shift + per_node) % per_node;
             };
             rank.exchange(at(far, i), at(-far, -i), message);
           }
         }
       }}},
  };
}

bool compare(const WorldSpec& world, int64_t ranks, const std::vector<Row>& rows) {
  Ranks all;
  for (int64_t rank = 0; rank < ranks; ++rank) all.push_back(rank);
  bool good = true;
  for (const Row& row : rows) {
    double simulated = std::numeric_limits<double>::infinity();
    for (const Algorithm& algorithm : row.algorithms) {
      simulated = std::min(simulated, simulated_us(world, ranks, algorithm));
    }
    const double formula = LinkCost(world).collective_us(row.op, row.bytes, all);
    const bool near = std::fabs(formula / simulated - 1) <= 0.01;
    good &= near;
    fmt::print("{:>5} {:>8}  {:<10} {:>10.0f} B {:>12.1f} us {:>12.1f} us {:>8.4f}{}\n", ranks,
               world.ranks_per_node > 0 ? ranks / world.ranks_per_node : 1, row.what, row.bytes,
               simulated, formula, formula / simulated, near ? "" : "  differs");
  }
  return good;
}

int compare_all() {
  fmt::print("ranks    nodes  collective       bytes         SimGrid        the clock    ratio\n");
  bool good = true;
  WorldSpec world;
  world.in_node = {.latency_us = 5, .gb_per_s = 10};
  for (const int64_t ranks : {2, 3, 4, 7, 8, 16}) {
    Ranks all;
    for (int64_t rank = 0; rank < ranks; ++rank) all.push_back(rank);
    for (const double bytes : {336.0, 33'600'000.0}) {
      good &= compare(world, ranks, one_level_rows(all, bytes));
    }
  }
  world.inter_node = {.latency_us = 20, .gb_per_s = 2.5};
  for (const bool shared : {false, true}) {
    world.inter_node.per_node = shared;
    for (const auto& [nodes, per_node] : {std::pair<int64_t, int64_t>{2, 4}, {4, 2}, {3, 3}}) {
      world.ranks_per_node = per_node;
      for (const double bytes : {720.0, 72'000'000.0}) {
        good &= compare(world, nodes * per_node, two_level_rows(nodes, per_node, bytes));
      }
    }
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace shardproof::sim

int main() { return shardproof::sim::compare_all(); }
