#include "sim/describe/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "model/decoder.h"
#include "model/weights.h"
#include "parallel/tp/describe.h"
#include "sim/world/rank/case_options.h"

namespace shardproof::sim::describe {

std::string plan_table(const CaseSpec& spec, const ModelConfig& config) {
  const Mesh mesh = spec.parallel.mesh();
  std::vector<PlanLine> lines = plan_lines(config, mesh,
                                           {.sequence_parallel = spec.parallel.sequence_parallel,
                                            .custom_plan = spec.parallel.custom_plan});
  if (mesh.parts().empty()) return plan_text(lines);
  Decoder model(config, weights_to_come(config));
  make_styles(world::parallel_options(spec.parallel)).place(model, mesh);
  std::map<std::string, ParameterPtr> parameters;
  for (const ParameterPtr& parameter : model.parameters()) parameters[parameter->name] = parameter;
  for (PlanLine& line : lines) {
    const auto found = parameters.find(line.parameter);
    if (found == parameters.end() || !found->second->rule.mean_over) continue;
    const Parameter& parameter = *found->second;
    line.style = "Experts";
    line.layout = parameter.layout.describe();
    line.local_shapes = {parameter.layout.local_shape(line.global_shape, mesh, 0)};
    line.gradient = fmt::format("summed over {}, for the mean over all ranks with other tokens",
                                fmt::join(*parameter.rule.mean_over, ", "));
  }
  return plan_text(lines);
}

}  // namespace shardproof::sim::describe
