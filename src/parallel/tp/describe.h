// A description, for people, of the parts of a model that tp ranks hold. It needs no world.
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
  std::string gradient;  // the reduction after the backward, "summed over tp"; "": none
};

// One line per parameter in forward order; a tied lm_head has none. Throws the errors of
// resolve_plan and place_slot.
std::vector<PlanLine> plan_lines(const ModelConfig& config, const Mesh& mesh,
                                 const TensorParallelOptions& options);

// An aligned text table of such lines. Layers in a row whose lines are equal are one:
// "model.layers.0-3.mlp.up_proj.weight".
std::string plan_text(const std::vector<PlanLine>& lines);

}  // namespace shardproof
