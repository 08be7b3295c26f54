// Where the ranks of a case run, and the costs of their network.
#pragma once

#include <cstdint>
#include <vector>

#include "base/backend.h"
#include "sim/case/enum_json.h"

namespace shardproof::sim {

// The cost of bytes and messages on the emulated world's virtual clock.
struct LinkSpec {
  double latency_us = 0;
  double gb_per_s = 0;    // of one rank, in one direction; 0: bytes cost nothing
  bool per_node = false;  // between nodes: gb_per_s is a node's, which its ranks share
  double loss = 0;        // between nodes, over Gloo only: share of packets that a link loses
};

// A rank that is slower than the others, or faster.
struct StragglerSpec {
  int64_t rank = 0;
  double compute = 1;  // factor on the time of its computing
  double links = 1;    // factor on the time of a collective whose other members have no greater one
};

enum class DeviceKind { kCpu, kCuda };
constexpr std::array<const char*, 2> names_of(DeviceKind) { return {"cpu", "cuda"}; }
enum class ComputeTime { kMeasured, kFixed };  // the thread's CPU time; a cost per op
constexpr std::array<const char*, 2> names_of(ComputeTime) { return {"measured", "fixed"}; }

struct WorldSpec {
  Backend backend = Backend::kEmulated;
  DeviceKind device = DeviceKind::kCpu;
  double hang_s = 2.0;
  double deadline_s = 120.0;  // of the whole case
  // The members below concern the emulated world only, but ranks_per_node and inter_node also a
  // Gloo world: its nodes are network namespaces (sim/world/nodes).
  bool strict = true;    // watch the buffers of asynchronous calls until wait()
  int64_t schedule = 0;  // seed of the order of ranks and of the ends of calls; 0: as they come
  int64_t ranks_per_node = 0;    // rank r is on node r / ranks_per_node; 0: all on one
  LinkSpec in_node, inter_node;  // default: communication costs nothing
  ComputeTime compute = ComputeTime::kMeasured;
  double compute_factor = 1;  // measured: virtual seconds per CPU second
  double op_us = 1;           // fixed: time of every op
  double gflop_per_s = 0;     // fixed: matrix products in addition to op_us; 0: no extra time
  std::vector<StragglerSpec> stragglers;
  // In every world: each call's inputs and outputs are hashed, and the judge compares the members'
  // hashes. Always on with faults.
  bool digests = false;

  // The rate of each node's link; 0: as fast as it can be.
  double node_gb_per_s() const {
    return inter_node.gb_per_s * static_cast<double>(inter_node.per_node ? 1 : ranks_per_node);
  }
};

}  // namespace shardproof::sim
