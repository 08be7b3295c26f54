// Options of a case that change nothing in it, and those that do.
#include "sim/case/idle_options.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "tests/unit/case/scenario/scenario_text.h"

using namespace shardproof;
using namespace shardproof::sim;

namespace {

using Sentences = std::vector<std::string>;

Sentences idle(const std::string& text, const WorldChoice& world = {}) {
  return idle_options(only_case(text, world));
}

// The sentence about each of these settings, which all lack the same.
Sentences each_idle(const Sentences& settings, const std::string& lack) {
  Sentences all;
  for (const std::string& one : settings)
    all.push_back(one + ", but " + lack + ": it has no effect");
  return all;
}

}  // namespace

TEST_CASE("Links between nodes have no effect on one node", "[idle]") {
  const std::string links = "inter_node: {latency_us: 5, gb_per_s: 2, per_node: true}";
  const Sentences all_idle = each_idle(
      {"world.links.inter_node.latency_us is 5.0", "world.links.inter_node.gb_per_s is 2.0",
       "world.links.inter_node.per_node is true"},
      "world.nodes is 1");
  // Four ranks; by either key.
  const auto on = [&](const std::string& nodes) {
    return idle("parallel: {tensor_parallel_size: 4}\nworld: {" + nodes + "links: {" + links +
                "}}\n");
  };
  CHECK(on("") == all_idle);
  CHECK(on("nodes: 1, ") == all_idle);
  CHECK(on("ranks_per_node: 4, ") == all_idle);
  CHECK(on("nodes: 2, ").empty());
  CHECK(on("ranks_per_node: 2, ").empty());
  CHECK(on("ranks_per_node: 1, ").empty());
}
