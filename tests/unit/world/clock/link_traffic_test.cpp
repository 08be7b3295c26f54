// Transfers that share a link, by hand; the order in which they are added does not matter.
#include "sim/world/clock/link_traffic.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <utility>

namespace shardproof::tests {
namespace {

using sim::world::LinkTraffic;
using Times = std::vector<std::pair<double, double>>;  // begin, end

LinkTraffic::Request request(int64_t channel, double ready_us, double latency_us, double bytes_us,
                             std::vector<int64_t> ranks) {
  return {.channel = channel,
          .ready_us = ready_us,
          .cost = {.latency_us = latency_us, .in_node_us = bytes_us},
          .ranks = std::move(ranks)};
}

LinkTraffic::Request between_nodes(LinkTraffic::Request request, double streams) {
  request.cost.inter_node_us = std::exchange(request.cost.in_node_us, 0);
  request.cost.streams = streams;
  return request;
}

LinkTraffic::Request message(LinkTraffic::Request request) {
  request.is_message = true;
  return request;
}

// Begin and end of each request, in the order of `requests`; they are added in the order `order`.
Times times_of(const std::vector<LinkTraffic::Request>& requests, const sim::WorldSpec& world = {},
               std::vector<size_t> order = {}) {
  LinkTraffic traffic(world);
  for (size_t i = order.size(); i < requests.size(); ++i) order.push_back(i);
  std::map<int64_t, size_t> index;
  for (const size_t i : order) index[traffic.add(requests[i])] = i;
  Times times(requests.size(), {-1, -1});
  while (!traffic.is_idle()) {
    for (const auto& ended : traffic.next()) {
      times[index.at(ended.transfer)] = {ended.begin_us, ended.end_us};
    }
  }
  return times;
}

sim::WorldSpec nodes_of_two(bool per_node) {
  sim::WorldSpec world;
  world.ranks_per_node = 2;
  world.inter_node.per_node = per_node;
  return world;
}

TEST_CASE("a transfer alone takes its latency and its bytes", "[links]") {
  CHECK(times_of({request(0, 5, 10, 8, {0, 1})}) == Times{{5, 23}});
  CHECK(times_of({request(0, 5, 0, 0, {0, 1})}) == Times{{5, 5}});
  CHECK(LinkTraffic().next().empty());
}

TEST_CASE("bytes that meet share the link, latencies do not", "[links]") {
  CHECK(times_of({request(0, 0, 10, 8, {0, 1}), request(1, 0, 10, 8, {0, 1})}) ==
        Times{{0, 26}, {0, 26}});
  // The second's latency overlaps the first's bytes.
  CHECK(times_of({request(0, 0, 10, 8, {0, 1}), request(1, 8, 10, 8, {0, 1})}) ==
        Times{{0, 18}, {8, 26}});
  // The first moves 2 of 6 alone and 4 at half the pace; the second then moves 4 of 8 alone.
  CHECK(times_of({request(0, 0, 0, 6, {0, 1}), request(1, 2, 0, 8, {0, 1})}) ==
        Times{{0, 10}, {2, 14}});
  // One common rank suffices for sharing, and disjoint transfers do not share.
  CHECK(times_of({request(0, 0, 0, 6, {0, 1}), request(1, 0, 0, 6, {1, 2})}) ==
        Times{{0, 12}, {0, 12}});
  CHECK(times_of({request(0, 0, 0, 6, {0, 1}), request(1, 0, 0, 6, {2, 3})}) ==
        Times{{0, 6}, {0, 6}});
}

TEST_CASE("three that share: each as fast as its busiest port lets it", "[links]") {
  // Rank 1 carries all three until 9; then 0-1 and 1-2 each have 3 of 6 left at half the pace.
  CHECK(times_of({request(0, 0, 0, 6, {0, 1}), request(1, 0, 0, 6, {1, 2}),
                  request(2, 0, 0, 3, {1, 3})}) == Times{{0, 15}, {0, 15}, {0, 9}});
}

TEST_CASE("a message takes one way of each end", "[links]") {
  // Messages in opposite directions, and those of a ring, do not share.
  CHECK(times_of({message(request(0, 0, 1, 8, {0, 1})), message(request(1, 0, 1, 8, {1, 0}))}) ==
        Times{{0, 9}, {0, 9}});
  CHECK(times_of({message(request(0, 0, 1, 8, {0, 1})), message(request(1, 0, 1, 8, {1, 2})),
                  message(request(2, 0, 1, 8, {2, 0}))}) == Times{{0, 9}, {0, 9}, {0, 9}});
  // Two messages from one rank, and two to one rank, do.
  CHECK(times_of({message(request(0, 0, 1, 8, {0, 1})), message(request(1, 0, 1, 8, {0, 2}))}) ==
        Times{{0, 17}, {0, 17}});
  CHECK(times_of({message(request(0, 0, 1, 8, {0, 2})), message(request(1, 0, 1, 8, {1, 2}))}) ==
        Times{{0, 17}, {0, 17}});
}

TEST_CASE("the ports of ranks, or of nodes", "[links]") {
  const auto dp = [](int64_t channel, std::vector<int64_t> ranks) {
    return between_nodes(request(channel, 0, 10, 8, std::move(ranks)), 1);
  };
  const std::vector<LinkTraffic::Request> both = {dp(0, {0, 2}), dp(1, {1, 3})};
  CHECK(times_of(both, nodes_of_two(false)) == Times{{0, 18}, {0, 18}});
  CHECK(times_of(both, nodes_of_two(true)) == Times{{0, 26}, {0, 26}});
  // Two streams of one collective get two thirds of the port, the stream of the other a third.
  const auto wide = between_nodes(request(0, 0, 0, 8, {0, 1, 2, 3}), 2);
  const auto narrow = between_nodes(request(1, 0, 0, 4, {1, 3}), 1);
  const Times times = times_of({wide, narrow}, nodes_of_two(true));
  CHECK(times[0].second == Approx(12).epsilon(1e-12));
  CHECK(times[1].second == Approx(12).epsilon(1e-12));
  // The port within a node differs from that out of it.
  CHECK(times_of({request(0, 0, 0, 8, {0, 1}), dp(1, {0, 2})}, nodes_of_two(true)) ==
        Times{{0, 8}, {0, 18}});
}

TEST_CASE("transfers of a channel follow each other", "[links]") {
  CHECK(times_of({request(0, 0, 2, 3, {0, 1}), request(0, 1, 2, 3, {0, 1}),
                  request(0, 20, 2, 3, {0, 1})}) == Times{{0, 5}, {5, 10}, {20, 25}});
}

TEST_CASE("the order in which channels are added changes no time", "[links]") {
  std::vector<LinkTraffic::Request> requests;
  for (int64_t i = 0; i < 6; ++i) {
    const auto at = static_cast<double>(i);
    requests.push_back(request(i, 0.3 * at, 1 + 0.7 * at, 5 - 0.1 * at, {i % 3, 3 + i % 2}));
  }
  std::vector<size_t> order = {0, 1, 2, 3, 4, 5};
  const Times times = times_of(requests, {}, order);
  while (std::next_permutation(order.begin(), order.end())) {
    REQUIRE(times_of(requests, {}, order) == times);
  }
}

}  // namespace
}  // namespace shardproof::tests
