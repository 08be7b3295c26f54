// Runs the training or scoring of one rank without its peers, and measures what it takes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "model/batch.h"
#include "model/config.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim::describe {

struct RankMeasurement {
  int64_t steps = 0;
  bool extended = false;  // from runs with fewer layers and samples
  // What the rank holds between two steps, "activations" that a step takes beside it, and all
  // "at most at once"; always the same names in the same order.
  std::vector<std::pair<std::string, int64_t>> bytes = {};
  // The calls of all steps by axis and op, {"tp", "all_reduce"}.
  std::map<std::pair<std::string, std::string>, int64_t> calls = {};
};

// Runs one scoring pass or at most two training steps of the real model, with weights of zeros, on
// the CPU. For a policy these are training steps on its first mesh. A case that would take more
// than a few seconds runs with one and two layers, and one and two samples on each rank of dp (for
// pairs twice as many), and the numbers are extended linearly. Returns nullopt when these runs
// would take too long as well. Throws Error(kRefused) as the rank would.
std::optional<RankMeasurement> measure_rank(const CaseSpec& spec, const ModelConfig& config,
                                            const Batch& batch, int64_t rank);

}  // namespace shardproof::sim::describe
