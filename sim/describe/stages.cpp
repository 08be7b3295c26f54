#include "sim/describe/stages.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

#include "base/count_of.h"
#include "model/decoder.h"
#include "model/weights.h"
#include "parallel/pp/messages.h"
#include "parallel/pp/simulate.h"
#include "parallel/pp/split.h"
#include "parallel/pp/style.h"
#include "parallel/pp/tables.h"
#include "parallel/tp/describe.h"
#include "sim/world/rank/case_options.h"
#include "train/held_tokens.h"

namespace shardproof::sim::describe {
namespace {

constexpr size_t kMostActions = 32;  // of one line

std::string parts_text(const StageParts& parts) {
  std::vector<std::string> texts;
  if (parts.embedding) texts.emplace_back("embedding");
  if (parts.layers == 1) texts.push_back(fmt::format("layer {}", parts.first_layer));
  if (parts.layers > 1) {
    texts.push_back(
        fmt::format("layers {}-{}", parts.first_layer, parts.first_layer + parts.layers - 1));
  }
  if (parts.norm) texts.emplace_back("norm");
  if (parts.extra_heads > 0) texts.push_back(count_of(parts.extra_heads, "extra head"));
  if (parts.head) texts.emplace_back("head");
  return texts.empty() ? "nothing" : fmt::format("{}", fmt::join(texts, ", "));
}

std::string place_text(int64_t rank, int64_t chunk, int64_t chunks) {
  return chunks == 1 ? fmt::format("pp {}", rank) : fmt::format("pp {} chunk {}", rank, chunk);
}

std::string actions_text(const std::vector<Action>& actions, int64_t chunks) {
  std::string text;
  for (size_t i = 0; i < std::min(actions.size(), kMostActions); ++i) {
    text += (i == 0 ? "" : " ") + action_name(actions[i], chunks);
  }
  if (actions.size() > kMostActions) text += fmt::format(" .. ({} in all)", actions.size());
  return text;
}

}  // namespace

std::string stage_tables(const CaseSpec& spec, const ModelConfig& config, const Batch& batch) {
  const Mesh mesh = spec.parallel.mesh();
  const ParallelOptions options = world::parallel_options(spec);
  const Pipeline pipeline = pipeline_of(options.pipeline, mesh);
  if (pipeline.ranks == 1) return "";
  check_schedule(pipeline);
  const Placement placement = pipeline.placement();
  const auto stages =
      split_model(config.num_hidden_layers, placement, options.pipeline.split, config.extra_heads);
  std::string text = "stages\n";
  for (int64_t rank = 0; rank < pipeline.ranks; ++rank) {
    for (int64_t chunk = 0; chunk < pipeline.chunks; ++chunk) {
      text +=
          fmt::format("  {:<14}{}\n", place_text(rank, chunk, pipeline.chunks),
                      parts_text(stages[static_cast<size_t>(placement.stage_of({rank, chunk}))]));
    }
  }
  if (!spec.is(ModelWorkload::kTrain)) return text + "\n";
  const int64_t microbatches = std::ssize(held_tokens(
      batch, mesh, 0, make_styles(options).token_cuts(mesh), world::train_options(spec)));
  Decoder model(config, weights_to_come(config));
  model.freeze(spec.frozen);
  auto tables = pipeline_tables(pipeline, microbatches);
  leave_out_untrained(tables, placement, first_trained_stage(model, options.pipeline, mesh));
  const bool splits = pipeline.splits_backward();
  const Simulation run = simulate(placement, tables, usual_costs(pipeline));
  text +=
      fmt::format("{} of {} microbatch{}: F forward, B backward{}{}\n", pipeline.schedule,
                  microbatches, microbatches == 1 ? "" : "es", splits ? ", W weight gradients" : "",
                  pipeline.chunks == 1 ? "" : "; 0.1 is microbatch 0 in chunk 1");
  for (int64_t rank = 0; rank < pipeline.ranks; ++rank) {
    const int64_t held = run.held[static_cast<size_t>(rank)];
    text +=
        fmt::format("  {:<14}{}     holds at most {} microbatch{}\n", fmt::format("pp {}", rank),
                    actions_text(tables[static_cast<size_t>(rank)], pipeline.chunks), held,
                    held == 1 ? "" : "es");
  }
  const double idle = std::accumulate(run.idle.begin(), run.idle.end(), 0.0);
  text += fmt::format("  {:<14}{:.1f}% of a step in which {}\n\n", "idle",
                      100 * idle / (run.makespan * static_cast<double>(pipeline.ranks)),
                      splits ? "a forward, a backward and weight gradients take equally long"
                             : "a backward takes as long as two forwards");
  return text;
}

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
