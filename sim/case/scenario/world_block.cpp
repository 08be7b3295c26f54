// Checks the nodes, stragglers and faults of a scenario's world against its number of ranks.
#include <fmt/ranges.h>

#include <set>

#include "base/count_of.h"
#include "sim/case/names.h"
#include "sim/case/scenario/blocks.h"

namespace shardproof::sim {
namespace {

int64_t ranks_per_node(const Settings& settings, int64_t world_size) {
  const bool by_nodes = settings.given("world.nodes");
  if (!by_nodes && !settings.given("world.ranks_per_node")) return 0;
  const std::string path = by_nodes ? "world.nodes" : "world.ranks_per_node";
  const auto count = settings.get<int64_t>(path);
  if (world_size % count != 0) {
    settings.fail(path,
                  fmt::format("{} is {}, which does not divide {}", path, count,
                              count_of(world_size, "rank")),
                  "put equally many ranks on every node");
  }
  const int64_t per_node = by_nodes ? world_size / count : count;
  if (by_nodes && settings.given("world.ranks_per_node") &&
      settings.get<int64_t>("world.ranks_per_node") != per_node) {
    settings.fail("world.ranks_per_node",
                  fmt::format("{} of {} do not come to {}", count_of(count, "node"),
                              count_of(settings.get<int64_t>("world.ranks_per_node"), "rank"),
                              count_of(world_size, "rank")),
                  fmt::format("remove one of the two, or write ranks_per_node: {}", per_node));
  }
  return per_node;
}

void check_stragglers(const Settings& settings, const std::vector<StragglerSpec>& stragglers,
                      int64_t world_size) {
  std::set<int64_t> named;
  for (const StragglerSpec& straggler : stragglers) {
    if (straggler.rank >= world_size) {
      settings.fail("world.stragglers",
                    fmt::format("a straggler is rank {}, but the mesh has {}", straggler.rank,
                                count_of(world_size, "rank")),
                    "name a rank of the mesh");
    }
    if (!named.insert(straggler.rank).second) {
      settings.fail("world.stragglers", fmt::format("rank {} is a straggler twice", straggler.rank),
                    "give both of its factors at one place");
    }
  }
}

// A fault without effect: the case would look as if it bore the fault.
void check_strength(const Settings& settings, const FaultSpec& fault, const WorldSpec& world) {
  const bool waits = fault.kind == FaultKind::kDelay || fault.kind == FaultKind::kLag;
  const bool loses = fault.kind == FaultKind::kLose;
  if ((waits && fault.seconds == 0) || (loses && fault.loss == 0)) {
    const char* key = waits ? "seconds" : "loss";
    settings.fail("faults",
                  fmt::format("the fault {} has {} 0, which changes nothing", fault.kind, key),
                  fmt::format("set {} above 0, or leave it out", key));
  }
  if (loses && fault.loss <= world.inter_node.loss) {
    settings.fail(
        "faults",
        fmt::format("the fault lose has loss {:g}, and the link loses {:g} of its packets "
                    "without it",
                    fault.loss, world.inter_node.loss),
        "set loss above that of world.links.inter_node");
  }
  const double rate = world.node_gb_per_s();
  if (fault.kind == FaultKind::kSlow && rate > 0 && fault.gb_per_s >= rate) {
    settings.fail("faults",
                  fmt::format("the fault slow has a rate of {:g} GB/s, and the link has {:g} "
                              "without it",
                              fault.gb_per_s, rate),
                  fmt::format("set gb_per_s below {:g}", rate));
  }
}

void check_faults(const Settings& settings, const CaseSpec& spec, int64_t world_size) {
  for (const FaultSpec& fault : spec.faults) {
    if (fault.rank >= world_size) {
      settings.fail("faults",
                    fmt::format("a fault is planted on rank {}, but the mesh has {}", fault.rank,
                                count_of(world_size, "rank")),
                    "name a rank of the mesh");
    }
    if (!fault.axis.empty()) check_axis(settings, "faults", fault.axis, "a fault");
    const bool has_links = spec.backends == std::vector{name_of(Backend::kGloo)};
    if (is_of_link(fault.kind) && (!has_links || spec.world.ranks_per_node == 0)) {
      settings.fail("faults",
                    fmt::format("the fault {} changes the link of a node, and this world has none",
                                fault.kind),
                    "set world: {backend: gloo, nodes: 2}");
    }
    if (is_of_link(fault.kind) && spec.world.ranks_per_node == world_size) {
      settings.fail("faults",
                    fmt::format("the fault {} changes the link of a node, and no packet of the "
                                "only node crosses it",
                                fault.kind),
                    "set world.nodes to 2 or more");
    }
    check_strength(settings, fault, spec.world);
    if (fault.kind == FaultKind::kSilence && (!fault.axis.empty() || fault.op != FaultSpec{}.op)) {
      settings.fail("faults", "a silence hides tensors, and it has an op or an axis of calls",
                    "leave these out; label names the tensors");
    }
    if (fault.kind == FaultKind::kStale && fault.at_call == 0) {
      settings.fail("faults", "a stale buffer at the first matching call: none was sent before it",
                    "set at_call to 1 or more");
    }
  }
}

}  // namespace

void check_axis(const Settings& settings, const std::string& path, const std::string& axis,
                const std::string& where) {
  const std::string unknown = unknown_axis(axis);
  if (unknown.empty()) return;
  settings.fail(path, unknown + " in " + where,
                axis.find_first_of("+,") == axis.npos
                    ? known_names(axis, known_axes())
                    : fmt::format("several are dp+cp, in the order of the mesh; known are {}",
                                  fmt::join(known_axes(), ", ")));
}

void set_world(const Settings& settings, CaseSpec& spec) {
  const int64_t world_size = spec.parallel.world_size();
  spec.world.ranks_per_node = ranks_per_node(settings, world_size);
  check_stragglers(settings, spec.world.stragglers, world_size);
  check_faults(settings, spec, world_size);
  spec.world.digests = spec.world.digests || !spec.faults.empty();
}

}  // namespace shardproof::sim
