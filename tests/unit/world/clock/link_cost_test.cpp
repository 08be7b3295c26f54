// Costs of collectives by hand, and by playing rounds of messages one by one.
#include "sim/world/clock/link_cost.h"

#include <catch2/catch.hpp>
#include <numeric>

namespace shardproof::tests {
namespace {

using sim::world::LinkCost;

// 10 us and 1 GB/s (1000 bytes per us) within a node; 50 us and 0.5 GB/s between nodes.
sim::WorldSpec slow_links(int64_t ranks_per_node = 0) {
  sim::WorldSpec world;
  world.ranks_per_node = ranks_per_node;
  world.in_node = {.latency_us = 10, .gb_per_s = 1};
  world.inter_node = {.latency_us = 50, .gb_per_s = 0.5};
  return world;
}

std::vector<int64_t> first_ranks(int64_t count) {
  std::vector<int64_t> ranks(static_cast<size_t>(count));
  std::iota(ranks.begin(), ranks.end(), int64_t{0});
  return ranks;
}

double cost(Op op, double bytes, int64_t count, int64_t ranks_per_node = 0) {
  return LinkCost(slow_links(ranks_per_node)).collective_us(op, bytes, first_ranks(count));
}

// Each of `rounds` times, every rank sends `bytes` to the next and waits for its own.
double played_ring(int64_t count, int64_t rounds, double bytes) {
  std::vector<double> now(static_cast<size_t>(count), 0);
  for (int64_t round = 0; round < rounds; ++round) {
    std::vector<double> next(now.size());
    for (size_t rank = 0; rank < now.size(); ++rank) {
      const size_t from = (rank + now.size() - 1) % now.size();
      next[rank] = std::max(now[rank], now[from]) + 10 + bytes / 1000;
    }
    now = next;
  }
  return now[0];
}

TEST_CASE("two ranks on one node, by hand", "[clock][links]") {
  // A ring has 2 rounds of 4000 bytes, 2 * (10 + 4); a tree 2 rounds of 8000 bytes, 2 * (10 + 8).
  CHECK(cost(Op::kAllReduce, 8000, 2) == Approx(28).epsilon(1e-12));
  CHECK(cost(Op::kAllGather, 8000, 2) == Approx(14).epsilon(1e-12));
  CHECK(cost(Op::kReduceScatter, 8000, 2) == Approx(14).epsilon(1e-12));
  CHECK(cost(Op::kAllToAll, 8000, 2) == Approx(14).epsilon(1e-12));
  CHECK(cost(Op::kBroadcast, 8000, 2) == Approx(18).epsilon(1e-12));
  CHECK(cost(Op::kGather, 8000, 2) == Approx(14).epsilon(1e-12));
  CHECK(cost(Op::kSend, 8000, 2) == Approx(18).epsilon(1e-12));
  CHECK(cost(Op::kBarrier, 0, 2) == Approx(10).epsilon(1e-12));
}

TEST_CASE("a ring costs what its rounds cost when they are played", "[clock][links]") {
  const int64_t count = GENERATE(2, 3, 5, 8);
  const double bytes = 840000;
  const auto parts = static_cast<double>(count);
  CHECK(cost(Op::kAllGather, bytes, count) ==
        Approx(played_ring(count, count - 1, bytes / parts)).epsilon(1e-12));
  CHECK(cost(Op::kAllReduce, bytes, count) ==
        Approx(played_ring(count, 2 * (count - 1), bytes / parts)).epsilon(1e-12));
}

TEST_CASE("few bytes over many ranks go up and down a tree", "[clock][links]") {
  // With 16 ranks, a ring takes 30 latencies and two trees take 8.
  CHECK(cost(Op::kAllReduce, 8, 16) == Approx(8 * (10 + 0.008)).epsilon(1e-12));
  CHECK(cost(Op::kBarrier, 0, 9) == Approx(40).epsilon(1e-12));
}

TEST_CASE("three ranks on each of two nodes work in two levels, by hand", "[clock][links]") {
  // Within a node: 2 rounds of 1/3 of 9000 bytes, 2 * (10 + 3) = 26; between nodes: 3000 bytes.
  const double within = 26, between_ring = 50 + 1500 / 500.0;
  CHECK(cost(Op::kAllGather, 9000, 6, 3) == Approx(within + between_ring).epsilon(1e-12));
  CHECK(cost(Op::kAllReduce, 9000, 6, 3) == Approx(2 * within + 2 * between_ring).epsilon(1e-12));
  // Each other rank gets 1500 bytes: two of them on this node, three on the other.
  CHECK(cost(Op::kAllToAll, 9000, 6, 3) == Approx(2 * (10 + 1.5) + 3 * (50 + 3)).epsilon(1e-12));
}

TEST_CASE("which links a group uses follows from where its ranks are", "[clock][links]") {
  const LinkCost links(slow_links(2));  // {0, 1} {2, 3}
  CHECK(links.collective_us(Op::kBarrier, 0, {2, 3}) == 10);
  CHECK(links.collective_us(Op::kBarrier, 0, {1, 3}) == 50);
  CHECK(links.collective_us(Op::kBarrier, 0, {0, 1, 2, 3}) == 60);
  CHECK(links.collective_us(Op::kSend, 1000, {1, 2}) == 52);
}

TEST_CASE("a rank with slow links slows down its groups and no other", "[clock][links]") {
  sim::WorldSpec world = slow_links();
  world.stragglers = {{.rank = 2, .compute = 1, .links = 4}};
  const LinkCost links(world);
  CHECK(links.collective_us(Op::kBarrier, 0, {0, 1}) == 10);
  CHECK(links.collective_us(Op::kBarrier, 0, {1, 2}) == 40);
}

TEST_CASE("the slowest member of a group counts, and fast ones only without others",
          "[clock][links]") {
  sim::WorldSpec world = slow_links();
  world.stragglers = {{.rank = 0, .links = 0.5},
                      {.rank = 1, .links = 0.2},
                      {.rank = 2, .links = 4},
                      {.rank = 4, .links = 0},
                      {.rank = 5, .links = 0}};
  const LinkCost links(world);
  const auto barrier = [&](const std::vector<int64_t>& ranks) {
    return links.collective_us(Op::kBarrier, 0, ranks);
  };
  CHECK(barrier({0, 1}) == Approx(0.5 * 10).epsilon(1e-12));
  CHECK(barrier({0, 2}) == Approx(4 * 10).epsilon(1e-12));
  CHECK(barrier({0, 3}) == Approx(10).epsilon(1e-12));  // rank 3 is not listed
  CHECK(barrier({1, 4}) == Approx(0.2 * 10).epsilon(1e-12));
  CHECK(barrier({4, 5}) == 0);
  CHECK(links.collective_us(Op::kAllReduce, 8000, {0, 1}) == Approx(0.5 * 28).epsilon(1e-12));
}

TEST_CASE("without links every collective is free", "[clock][links]") {
  const LinkCost links{sim::WorldSpec{}};
  CHECK(links.collective_us(Op::kAllReduce, 1e9, {0, 1, 2}) == 0);
  CHECK(cost(Op::kAllReduce, 1e9, 1) == 0);
}

}  // namespace
}  // namespace shardproof::tests
