// Relations of a model in stages with the same model in other stages or in none. A stage computes
// what a whole model computes on the same shapes, and messages copy bits, so that they hold to the
// bit, in every precision (docs/pipeline.md).
#include "base/pipeline_schedules.h"
#include "sim/uses/relations/relations.h"

namespace shardproof::sim::relations {

namespace {

// Whether each rank has one microbatch, so that no sum over them has an order.
bool has_one_microbatch(const CaseSpec& spec) {
  const int64_t shares = spec.parallel.ranks(Share::kSamples);
  return spec.batching.kind == BatchingKind::kFixed &&
         (spec.micro_batch_size == 0 || spec.micro_batch_size * shares >= spec.data.batch_size);
}

std::string is_in_stages(const CaseSpec& spec, const ModelConfig&) {
  return spec.parallel.pp > 1 ? "" : "the model is not in stages";
}

void join_stages(Variant&, Variant& second) {
  second.spec.parallel.pp = 1;
  second.spec.parallel.pp_options = {};
}

std::string takes_other_table(const CaseSpec& spec, const ModelConfig& config) {
  if (spec.parallel.pp == 1) return "the model is not in stages";
  const bool even = config.num_hidden_layers % spec.parallel.pp == 0;
  return even ? "" : "the layers do not divide over the ranks of pp";
}

void change_table(Variant& first, Variant& second) {
  const PipelineSpec& pipeline = first.spec.parallel.pp_options;
  const bool gpipe = pipeline.schedule == PipelineSchedule::kGPipe;
  second.spec.parallel.pp_options = {
      .schedule = gpipe ? PipelineSchedule::k1F1B : PipelineSchedule::kGPipe,
      .shapes = pipeline.shapes};
}

// The embedding alone on the first stage, and the layers behind it, the first ones on more stages.
std::string other_layout(const Variant& variant) {
  const int64_t stages = variant.spec.parallel.pp * variant.spec.parallel.pp_options.chunks;
  const int64_t layers = variant.config.num_hidden_layers, others = stages - 1;
  std::string layout = "E";
  for (int64_t stage = 0; stage < others; ++stage) {
    const int64_t held = layers / others + (stage < layers % others ? 1 : 0);
    layout += "|" + std::string(static_cast<size_t>(held), 't');
  }
  return layout + std::string(static_cast<size_t>(variant.config.extra_heads), 'm') + "L";
}

void change_split(Variant& first, Variant& second) {
  PipelineSpec& pipeline = second.spec.parallel.pp_options;
  pipeline = {.schedule = pipeline.schedule,
              .shapes = pipeline.shapes,
              .chunks = pipeline.chunks,
              .group = pipeline.group,
              .layout = other_layout(first)};
}

// Sums that have another order in stages: of an embedding over its holders, which are the ends of a
// tied model and the stage of extra heads, of the microbatches where backwards descend, and of what
// fsdp reduces for each of them where a backward is split. They and the norm are compared by
// `another_mesh`.
void drop_reordered_sums(const Variant& first, const Variant&, Values& a, Values& b) {
  const CaseSpec& spec = first.spec;
  const bool heads = first.config.extra_heads > 0;
  if (has_one_microbatch(spec) && !heads) return;
  const bool sharded = spec.parallel.data_parallel != DataParallelKind::kReplicate;
  const ScheduleTraits& traits = traits_of(spec.parallel.pp_options.schedule);
  const bool all = traits.descends ||
                   (traits.splits_backward && sharded && spec.parallel.fsdp.reduce_each_microbatch);
  const bool tied = first.config.tie_word_embeddings || heads;
  if (!all && !tied) return;
  for (Values* values : {&a, &b}) {
    std::erase_if(*values, [&](const auto& named) {
      using enum ObservationKind;
      const ObservationKind kind = kind_of_value(named.first);
      const bool embeds = named.first == gradient_of("model.embed_tokens.weight");
      return kind == kGradNorm || (kind == kGradient && (all || embeds));
    });
  }
}

}  // namespace

std::vector<Relation> stage_relations() {
  const auto row = [](const char* name, const char* changed, auto why_not, auto change) {
    return Relation{.name = name,
                    .changed = changed,
                    .why_not = why_not,
                    .change = change,
                    .back = drop_reordered_sums,
                    .exact = true,
                    .every_precision = true,
                    .of_experts = true};
  };
  return {
      row("stages_joined", "the same mesh without stages", is_in_stages, join_stages),
      row("another_table", "another schedule, with one chunk on each rank", takes_other_table,
          change_table),
      row("another_split", "the embedding alone on the first stage", is_in_stages, change_split),
  };
}

}  // namespace shardproof::sim::relations
