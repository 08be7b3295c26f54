#include "sim/case/scenario/world_keys.h"

#include "mesh/mesh.h"
#include "sim/case/names.h"

namespace shardproof::sim {

std::vector<SchemaKey> world_keys() {
  const auto max_ranks = static_cast<double>(Mesh::kMaxWorldSize);
  constexpr double longest_s = 1e6, largest_rate = 1e9, largest_factor = 1e6;
  return {
      {"world.backend", KeyType::kNames, nullptr,
       "The only backends that this scenario is for; without it all", 0, 0, known_backends()},
      {"world.size", KeyType::kInteger, nullptr, "Ranks that the mesh must come to", 1, max_ranks},
      {"world.device", KeyType::kName, nullptr, "The only device that this scenario is for", 0, 0,
       known_devices()},
      {"world.hang_s", KeyType::kNumber, 2.0, "Seconds without progress after which a rank is hung",
       0.01, longest_s},
      {"world.strict", KeyType::kBool, true,
       "Emulated: buffers of asynchronous calls are poisoned and watched until wait()"},
      {"world.digests", KeyType::kBool, false,
       "What each call sent and delivered is hashed and compared; always so with faults"},
      {"world.nodes", KeyType::kInteger, nullptr,
       "Emulated: nodes that the ranks lie on, equally many on each, in order; without it 1", 1,
       max_ranks},
      {"world.ranks_per_node", KeyType::kInteger, nullptr,
       "The same, said by the ranks of one node", 1, max_ranks},
      {"world.links.in_node.latency_us", KeyType::kNumber, 0.0,
       "Virtual clock: what a message within a node takes besides its bytes", 0, longest_s},
      {"world.links.in_node.gb_per_s", KeyType::kNumber, 0.0,
       "Of each rank within its node, in one direction; 0: bytes take no time", 0, largest_rate},
      {"world.links.inter_node.latency_us", KeyType::kNumber, 0.0, "The same between nodes", 0,
       longest_s},
      {"world.links.inter_node.gb_per_s", KeyType::kNumber, 0.0, "The same between nodes", 0,
       largest_rate},
      {"world.links.inter_node.per_node", KeyType::kBool, false,
       "true: gb_per_s is of each node, and what its ranks send at once shares it"},
      {"world.compute",
       KeyType::kName,
       "measured",
       "Virtual clock: computing takes the thread's CPU time, or fixed costs, equal in every run",
       0,
       0,
       {"measured", "fixed"}},
      {"world.compute_cost.factor", KeyType::kNumber, 1.0,
       "measured: virtual seconds per CPU second", 0, largest_factor},
      {"world.compute_cost.op_us", KeyType::kNumber, 1.0, "fixed: of every op", 0, longest_s},
      {"world.compute_cost.gflop_per_s", KeyType::kNumber, 0.0,
       "fixed: matrix products, on top of op_us; 0: they cost no more than any op", 0,
       largest_rate},
      {"world.stragglers", KeyType::kRecords, nlohmann::json::array(),
       "Ranks that are slower than the others"},
      {"world.stragglers[].rank", KeyType::kInteger, nullptr, "Which", 0, max_ranks},
      {"world.stragglers[].compute", KeyType::kNumber, 1.0,
       "Its computing takes so many times as long", 0, largest_factor},
      {"world.stragglers[].links", KeyType::kNumber, 1.0,
       "Every collective that it is a member of takes so many times as long", 0, largest_factor},
      {"world.deadline_s", KeyType::kNumber, 120.0, "Seconds that the whole case may take", 0.01,
       longest_s},
  };
}

}  // namespace shardproof::sim
