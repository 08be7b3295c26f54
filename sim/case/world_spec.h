// Where the ranks of a case run, and what their network costs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof::sim {

// What a byte and a message cost on the emulated world's virtual clock.
struct LinkSpec {
  double latency_us = 0;
  double gb_per_s = 0;    // of one rank, in one direction; 0: bytes cost nothing
  bool per_node = false;  // between nodes: of one node instead; its ranks share it
};

// A rank that is slower than the others.
struct StragglerSpec {
  int64_t rank = 0;
  double compute = 1;  // its computing takes so many times as long
  double links = 1;    // every collective that it is a member of takes so many times as long
};

struct WorldSpec {
  std::string backend = "emulated";  // emulated | gloo | nccl
  std::string device = "cpu";        // cpu | cuda
  double hang_s = 2.0;
  double deadline_s = 120.0;  // of the whole case
  // The rest: the emulated world only.
  bool strict = true;                // buffers of asynchronous calls are watched until wait()
  int64_t ranks_per_node = 0;        // rank r is on node r / ranks_per_node; 0: all on one
  LinkSpec in_node, inter_node;      // default: communication costs nothing
  std::string compute = "measured";  // measured: the thread's CPU time | fixed: a cost per op
  double compute_factor = 1;         // measured: virtual seconds per CPU second
  double op_us = 1;                  // fixed: of every op
  double gflop_per_s = 0;            // fixed: matrix products on top of it; 0: they cost an op
  std::vector<StragglerSpec> stragglers;
  // Every world again: what each call sent and delivered is hashed, and the judge compares its
  // members' hashes. Always so with faults.
  bool digests = false;
};

}  // namespace shardproof::sim
