#include "parallel/pp/style.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/error.h"
#include "parallel/pp/stages.h"
#include "parallel/pp/tables.h"

namespace shardproof {

Pipeline pipeline_of(const PipelineOptions& options, const Mesh& mesh) {
  return {.schedule = options.schedule,
          .ranks = mesh.size("pp"),
          .chunks = options.chunks,
          .group = options.group};
}

namespace {

std::vector<StageParts> split_of(const Decoder& model, const PipelineOptions& options,
                                 const Mesh& mesh) {
  return split_model(model.config().num_hidden_layers, pipeline_of(options, mesh).placement(),
                     options.split, model.config().extra_heads);
}

// The segments of each stage.
std::vector<std::vector<Segment>> stages_of(const Decoder& model, const PipelineOptions& options,
                                            const Mesh& mesh) {
  using Part = Segment::Part;
  std::vector<std::vector<Segment>> stages;
  for (const StageParts& parts : split_of(model, options, mesh)) {
    std::vector<Segment> stage;
    if (parts.embedding) stage.push_back({Part::kEmbed});
    for (int64_t i = 0; i < parts.layers; ++i) {
      stage.push_back({Part::kLayer, parts.first_layer + i});
    }
    if (parts.norm) stage.push_back({Part::kNorm});
    for (int64_t i = 0; i < parts.extra_heads; ++i) {
      stage.push_back({Part::kExtraHead, model.config().num_hidden_layers + i});
    }
    if (parts.head) stage.push_back({Part::kHead});
    stages.push_back(std::move(stage));
  }
  return stages;
}

// The boundaries behind each stage but the last. An empty stage passes on what it gets. What extra
// heads read and add is not a stream of the golden, and is not observed.
std::vector<Boundary> boundaries_of(Decoder& model, const PipelineOptions& options,
                                    const Mesh& mesh) {
  const auto stages = stages_of(model, options, mesh);
  int64_t streams = 1;
  const Placement placement = pipeline_of(options, mesh).placement();
  std::vector<Boundary> boundaries;
  for (int64_t stage = 0; stage + 1 < std::ssize(stages); ++stage) {
    const auto next = std::find_if(stages.begin() + stage + 1, stages.end(),
                                   [](const auto& segments) { return !segments.empty(); });
    SHARDPROOF_ASSERT(next != stages.end(), "the last stage of a model has its head");
    for (const Segment& segment : stages[static_cast<size_t>(stage)]) {
      if (segment.part == Segment::Part::kExtraHead) ++streams;
    }
    const bool is_of_model = streams == 1 && next->front().part != Segment::Part::kExtraHead;
    Boundary boundary{
        .part = is_of_model ? part_name(next->front()) : "", .stage = stage, .streams = streams};
    const std::vector<Layout>& inputs = model.slots_of(next->front()).front()->input_layouts;
    for (const Cut& cut : inputs.empty() ? std::vector<Cut>() : inputs.front().cuts()) {
      if (cut.axis != "pp") boundary.layout.append(cut);
    }
    const std::set<int64_t> ends = {placement.place_of(stage).rank,
                                    placement.place_of(stage + 1).rank};
    boundary.layout.append(Cut::held_by("pp", {ends.begin(), ends.end()}));
    boundaries.push_back(std::move(boundary));
  }
  return boundaries;
}

bool trains(Decoder& model, const Segment& segment) {
  for (const Slot* slot : model.slots_of(segment)) {
    for (const ParameterPtr& parameter : slot->layer->parameters()) {
      if (parameter->trainable) return true;
    }
  }
  return false;
}

}  // namespace

int64_t first_trained_stage(Decoder& model, const PipelineOptions& options, const Mesh& mesh) {
  const auto stages = stages_of(model, options, mesh);
  const auto first = std::find_if(stages.begin(), stages.end(), [&](const auto& segments) {
    return std::any_of(segments.begin(), segments.end(),
                       [&](const Segment& segment) { return trains(model, segment); });
  });
  SHARDPROOF_ASSERT(first != stages.end(), "something is trained in a model");
  return first - stages.begin();
}

void PipelineParallel::place(Decoder& model, const Mesh& mesh) const {
  if (mesh.size("pp") == 1) return;
  const Pipeline pipeline = pipeline_of(options_, mesh);
  check_schedule(pipeline);
  const auto stages = stages_of(model, options_, mesh);
  std::map<ParameterPtr, std::set<int64_t>> holders, users;  // ranks, and stages
  for (int64_t stage = 0; stage < std::ssize(stages); ++stage) {
    const int64_t rank = pipeline.placement().place_of(stage).rank;
    for (const Segment& segment : stages[static_cast<size_t>(stage)]) {
      for (Slot* slot : model.slots_of(segment)) {
        slot->output_layout.append(Cut::held_by("pp", {rank}));
        for (Layout& layout : slot->input_layouts) layout.append(Cut::held_by("pp", {rank}));
        for (const ParameterPtr& parameter : slot->layer->parameters()) {
          holders[parameter].insert(rank);
          users[parameter].insert(stage);
        }
      }
    }
  }
  for (const auto& [parameter, ranks] : holders) {
    parameter->layout.append(Cut::held_by("pp", {ranks.begin(), ranks.end()}));
    if (ranks.size() > 1) parameter->rule.sum_over_holders = "pp";
    parameter->in_two_chunks = users[parameter].size() > ranks.size();
  }
}

void PipelineParallel::install(Decoder& model, MeshComm& comm) const {
  const Mesh& mesh = comm.mesh();
  if (mesh.size("pp") == 1) return;
  comm.along("pp");
  const auto stages = stages_of(model, options_, mesh);
  const Placement placement = pipeline_of(options_, mesh).placement();
  const int64_t rank = mesh.coordinate("pp", comm.rank());
  std::vector<std::vector<Segment>> chunks;
  for (int64_t chunk = 0; chunk < placement.chunks; ++chunk) {
    chunks.push_back(stages[static_cast<size_t>(placement.stage_of({rank, chunk}))]);
  }
  model.set_chunks(std::move(chunks));
}

void PipelineParallel::cut_tokens(TokenCuts& cuts, const Mesh& mesh) const {
  cuts.stage_axis = "pp";
  if (mesh.size("pp") == 1) return;
  cuts.fitting_microbatches = [pipeline = pipeline_of(options_, mesh)](int64_t microbatches) {
    return next_microbatches(pipeline, microbatches);
  };
}

std::optional<std::vector<Action>> PipelineParallel::schedule(const Mesh& mesh, int64_t rank,
                                                              int64_t microbatches,
                                                              bool backward) const {
  if (mesh.size("pp") == 1) return std::nullopt;
  const int64_t place = mesh.coordinate("pp", rank);
  return backward ? pipeline_actions(pipeline_of(options_, mesh), microbatches, place)
                  : forward_actions(pipeline_of(options_, mesh), microbatches, place);
}

std::unique_ptr<StageLink> PipelineParallel::link(const StoreSetup& setup) const {
  const Mesh& mesh = setup.comm.mesh();
  if (mesh.size("pp") == 1) return nullptr;
  return std::make_unique<PipelineStages>(
      pipeline_of(options_, mesh), first_trained_stage(setup.model, options_, mesh),
      options_.shapes, boundaries_of(setup.model, options_, mesh), setup.comm, setup.dtype,
      setup.device);
}

}  // namespace shardproof
