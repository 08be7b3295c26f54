// What an emulated world is told beside its backend.
#include "sim/case/scenario/build_emulation.h"

#include <fmt/format.h>

namespace shardproof::sim {
namespace {

LinkSpec link_of(const Settings& settings, const std::string& path) {
  return {.latency_us = settings.get<double>(path + ".latency_us"),
          .gb_per_s = settings.get<double>(path + ".gb_per_s")};
}

int64_t ranks_per_node(const Settings& settings, int64_t world_size) {
  const bool by_nodes = settings.given("world.nodes");
  if (!by_nodes && !settings.given("world.ranks_per_node")) return 0;
  const std::string path = by_nodes ? "world.nodes" : "world.ranks_per_node";
  const auto count = settings.get<int64_t>(path);
  if (world_size % count != 0) {
    settings.fail(path,
                  fmt::format("{} is {}, which does not divide {} ranks", path, count, world_size),
                  "put equally many ranks on every node");
  }
  const int64_t per_node = by_nodes ? world_size / count : count;
  if (by_nodes && settings.given("world.ranks_per_node") &&
      settings.get<int64_t>("world.ranks_per_node") != per_node) {
    settings.fail("world.ranks_per_node",
                  fmt::format("{} nodes of {} ranks do not come to {} ranks", count,
                              settings.get<int64_t>("world.ranks_per_node"), world_size),
                  fmt::format("remove one of the two, or write ranks_per_node: {}", per_node));
  }
  return per_node;
}

}  // namespace

void set_emulation(const Settings& settings, int64_t world_size, WorldSpec& world) {
  world.strict = settings.get<bool>("world.strict");
  world.ranks_per_node = ranks_per_node(settings, world_size);
  world.in_node = link_of(settings, "world.links.in_node");
  world.inter_node = link_of(settings, "world.links.inter_node");
  world.inter_node.per_node = settings.get<bool>("world.links.inter_node.per_node");
  world.compute = settings.get<std::string>("world.compute");
  world.compute_factor = settings.get<double>("world.compute_cost.factor");
  world.op_us = settings.get<double>("world.compute_cost.op_us");
  world.gflop_per_s = settings.get<double>("world.compute_cost.gflop_per_s");
  for (const nlohmann::json& record : settings.value("world.stragglers")) {
    StragglerSpec straggler{
        .rank = record["rank"], .compute = record["compute"], .links = record["links"]};
    if (straggler.rank >= world_size) {
      settings.fail(
          "world.stragglers",
          fmt::format("a straggler is rank {}, but there are {} ranks", straggler.rank, world_size),
          "name a rank of the mesh");
    }
    world.stragglers.push_back(straggler);
  }
}

}  // namespace shardproof::sim
