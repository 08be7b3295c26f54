// Who holds what under tensor parallelism, for people. Needs a config and a mesh, no world.
#pragma once

#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "parallel/tp/plan.h"

namespace shardproof {

struct PlanLine {
  std::string parameter;
  std::string style;   // of the slot that holds it
  std::string layout;  // "S(0)tp"
  std::vector<int64_t> global_shape;
  std::vector<std::vector<int64_t>> local_shapes = {};  // one per tp rank, padding included
  std::string gradient;  // "" or what is summed after backward: "summed over tp", ...
};

// One line per parameter in forward order; a tied lm_head has none. Throws what resolve_plan and
// place_slot throw.
std::vector<PlanLine> plan_lines(const ModelConfig& config, const Mesh& mesh,
                                 const TensorParallelOptions& options);

// The same as an aligned text table.
std::string describe_plan(const ModelConfig& config, const Mesh& mesh,
                          const TensorParallelOptions& options);

}  // namespace shardproof
