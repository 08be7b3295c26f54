// Options of the mesh and of the sharding over it.
#include <fmt/format.h>

#include "base/pipeline_schedules.h"
#include "sim/case/needs.h"

namespace shardproof::sim {

namespace {

constexpr const char* kOfStages = "no other option knows how stages are made: scenarios/pp";

// Axes over which parameters can be sharded.
Needs has_shares() {
  Needs needs;
  for (const TrainingAxis& axis : kTrainingAxes) {
    if (axis.share != Share::kModel) needs.ways.push_back({more_than_one(axis)});
  }
  return needs;
}

OptionRow<AxisSizes> size_row(const TrainingAxis& axis, const std::string& path,
                              const std::string& doc, const std::string& short_name) {
  return with(row_of(axis.size, axis.name, path.c_str(), doc.c_str()), Range{1, kMaxRanks},
              ShortName{short_name.c_str()});
}

OptionRows<ParallelSpec> sizes_of_mesh() {
  OptionRows<ParallelSpec> rows;
  for (const TrainingAxis& axis : kTrainingAxes) {
    const bool follows = axis.size == &AxisSizes::dp;
    const std::string doc =
        fmt::format("Ranks of axis {}{}", axis.name,
                    follows ? "; default: world.size divided by the other axes, or 1" : "");
    rows.push_back(size_row(axis, std::string("parallel.") + axis.key, doc, axis.name));
    if (follows) add_to(rows.back(), Default::kFollows);
    // With stages the golden has boundaries.
    if (axis.size == &AxisSizes::pp) add_to(rows.back(), Golden::kOwnKey);
  }
  return rows;
}

OptionRows<ParallelSpec> sizes_of_experts() {
  OptionRows<ParallelSpec> rows;
  for (const ExpertPart& part : kExpertParts) {
    const bool whole = part.size == &AxisSizes::ep;
    const std::string path = std::string("parallel.") + part.key;
    const std::string doc = whole ? "Ranks that hold different experts of a layer, inside dp, cp, "
                                    "ulysses and tp (part ep)"
                                  : "Ranks that hold parts of each expert (part etp)";
    const auto row = row_of(part.size, part.name, path.c_str(), doc.c_str());
    rows.push_back(
        with(row, Range{1, kMaxRanks}, ShortName{part.name}, with_experts(), kOfExperts));
  }
  return rows;
}

OptionRows<ReferenceSpec> sizes_of_reference() {
  using Spec = ReferenceSpec;
  const Needs is_compared =
      with({"precision", "float64"},
           any_of(workload(ModelWorkload::kTrain), workload(ModelWorkload::kLogprobs)));
  OptionRows<ReferenceSpec> rows;
  const auto add = [&rows](const auto& row, const char* member, const auto&... more) {
    rows.push_back(with(lifted(row, &Spec::mesh, ""), more...));
    rows.back().member = member;
  };
  for (const TrainingAxis& axis : kTrainingAxes) {
    const std::string doc =
        rows.empty() ? fmt::format(
                           "Compare with another layout of the model, not with one device: "
                           "its ranks of axis {}; default: 1",
                           axis.name)
                     : fmt::format("Ranks of axis {} of the reference; default: 1", axis.name);
    const auto row = size_row(axis, std::string("reference.mesh.") + axis.name, doc,
                              std::string("reference_") + axis.name);
    add(row, axis.name, Default::kFollows, is_compared);
  }
  for (const ExpertPart& part : kExpertParts) {
    const std::string path = std::string("reference.mesh.") + part.name;
    const std::string doc =
        fmt::format("Ranks of part {} of the reference, inside its axes", part.name);
    const std::string short_name = std::string("reference_") + part.name;
    const auto row = with(row_of(part.size, part.name, path.c_str(), doc.c_str()),
                          Range{1, kMaxRanks}, ShortName{short_name.c_str()});
    add(row, part.name, with_experts(is_compared), kOfExperts);
  }
  return rows;
}

Needs trained_shards() {
  return either(with({"parallel.data_parallel", "fsdp"}, trains()),
                with({"parallel.data_parallel", "hybrid"}, trains()));
}

Needs of_groups() {  // schedules whose microbatches go through chunks in groups
  std::vector<std::string> names;
  for (const ScheduleTraits& one : kScheduleTraits) {
    if (one.groups) names.emplace_back(name_of(one.schedule));
  }
  return any_value("parallel.pp.schedule", names);
}

}  // namespace

const OptionRows<ParallelSpec>& rows_of(const ParallelSpec&) {
  using Spec = ParallelSpec;
  const Needs biased =
      either(any_of(Needed{"model.attention_bias", true}, Needed{"model.mlp_bias", true}),
             in_families([](const FamilyTraits& family) { return family.qkv_bias; }));
  static const OptionRows<ParallelSpec> others = {
      row<&Spec::sequence_parallel>("parallel.sequence_parallel",
                                    "Shard the sequence over tp in norms", ShortName{"sp"},
                                    Flag{"--sequence-parallel"}, all_of(tp())),
      row<&Spec::async_grad>("parallel.tp.async_grad",
                             "Column-parallel linears reduce the gradient of their input while "
                             "they compute that of their weight",
                             with(tp(), trains())),
      row<&Spec::gather_buffer>("parallel.tp.gather_buffer",
                                "Linears with sequence_parallel gather into memory that they "
                                "use again",
                                all_of(tp(), Needed{"parallel.sequence_parallel", true})),
      row<&Spec::deferred_wgrad>("parallel.tp.deferred_wgrad",
                                 "Microbatches whose weight gradients of column-parallel linears "
                                 "are computed after the last backward; 0: none",
                                 Range{0, 1e6}, with(tp(), trains())),
      row<&Spec::bias>("parallel.tp.bias",
                       "after: a linear that tp cuts leaves its bias to be added after it",
                       ShortName{"bias"}, with(tp(), biased)),
      row<&Spec::spread_checkpoints>(
          "parallel.tp.spread_checkpoints",
          "Each tp rank keeps a part of what activation_checkpointing "
          "keeps, and the backward gathers it",
          with(tp(), any_value("parallel.activation_checkpointing", {"layer", "mlp"}))),
      row<&Spec::gradients>("run.gradients",
                            "main: the backward of a linear adds the gradient of its weight to a "
                            "buffer of the wider type",
                            trains()),
      row<&Spec::data_parallel>("parallel.data_parallel", "How dp holds parameters",
                                Flag{"--data-parallel"}, has_shares()),
      row<&Spec::expert_dispatch>(
          "parallel.experts.dispatch",
          "How tokens reach the ranks of ep and etp that hold their experts", ShortName{"dispatch"},
          any_of(Needed{"parallel.expert_parallel_size", nullptr},
                 Needed{"parallel.expert_tensor_parallel_size", nullptr}),
          kOfExperts),
      row<&Spec::expert_rows_multiple>("parallel.experts.rows_multiple",
                                       "Each expert computes a multiple of so many rows, with "
                                       "zeros behind those of its tokens",
                                       Range{1, 1024}, ShortName{"rows_multiple"}, with_experts(),
                                       kOfExperts),
      member<&Spec::pp_options>(),
      member<&Spec::fsdp>(),
      row<&Spec::activation_checkpointing>(
          "parallel.activation_checkpointing",
          "Part of a layer that the backward recomputes; true: mlp", OfBool{"none", "mlp"},
          ShortName{"checkpointing"}, Flag{"--activation-checkpointing"}, trains()),
      row<&Spec::discarded_outputs>("parallel.discarded_outputs",
                                    "Outputs of a layer's norms and activations that the forward "
                                    "frees and the backward computes again",
                                    ShortName{"discarded"}, Flag{"--discarded-outputs"}, trains()),
      row<&Spec::context_layout>("parallel.context_layout",
                                 "Which tokens of a sequence a cp rank holds",
                                 Choices{{"zigzag", "contiguous"}}, ShortName{"layout"},
                                 Flag{"--context-layout"}, all_of(cp())),
      row<&Spec::context_rotation>("parallel.context_rotation",
                                   "How cp ranks exchange keys and values", ShortName{"rotation"},
                                   Flag{"--context-rotation"}, all_of(cp())),
      row<&Spec::custom_plan>("parallel.custom_parallel_plan",
                              "{slot name pattern: style}, instead of the architecture's own plan",
                              Null::kAllowed, ShortName{"plan"}, all_of(tp())),
      row<&Spec::grad_norm_counts>("run.grad_norm.counts",
                                   "each_of_tp: a parameter that tp copies counts once per rank, "
                                   "so that the norm is too large",
                                   ShortName{"counts"}, with(tp(), trains()),
                                   NotDrawn{"each_of_tp is wrong on purpose"}),
      row<&Spec::inference_tp>(
          "run.refit.tensor_parallel_size",
          "policy: inference ranks outside of the mesh, to which a refit sends the weights",
          Range{1, 1024}, Default::kFollows, all_of(stage(StageKind::kRefit))),
  };
  static const auto rows = joined<ParallelSpec>({sizes_of_mesh(), sizes_of_experts(), others});
  return rows;
}

const OptionRows<PipelineSpec>& rows_of(const PipelineSpec&) {
  using Spec = PipelineSpec;
  static const OptionRows<PipelineSpec> rows = {
      row<&Spec::schedule>("parallel.pp.schedule",
                           "The order of forwards and backwards on the ranks of pp",
                           ShortName{"schedule"}, all_of(pp()), NotPaired{kOfStages}),
      row<&Spec::chunks>(
          "parallel.pp.chunks", "Parts of the model on each rank of pp; zbv and dualpipev need 2",
          Range{1, kMaxRanks}, ShortName{"chunks"}, all_of(pp()), NotPaired{kOfStages}),
      row<&Spec::group>("parallel.pp.group",
                        "interleaved, zb1p: microbatches that go through one chunk before the rank "
                        "turns to the next; 0: as many as ranks of pp",
                        Range{0, 1e6}, ShortName{"group"},
                        with(pp(), with({"parallel.pp.chunks", nullptr}, of_groups())),
                        NotPaired{kOfStages}),
      row<&Spec::shapes>("parallel.pp.shapes",
                         "Shapes of the tensors between stages: both ends know them from the "
                         "batch, or three sizes go ahead of each tensor",
                         all_of(pp()), NotPaired{kOfStages}),
      row<&Spec::first_layers>("parallel.pp.first_layers",
                               "Layers of the first rank of pp; 0: as many as the others",
                               Range{0, 1e6}, all_of(pp()), NotPaired{kOfStages}),
      row<&Spec::last_layers>("parallel.pp.last_layers",
                              "Layers of the last rank of pp; 0: as many as the others",
                              Range{0, 1e6}, all_of(pp()), NotPaired{kOfStages}),
      row<&Spec::count_embedding>("parallel.pp.count_embedding",
                                  "The embedding counts as a layer when layers are dealt",
                                  all_of(pp()), NotPaired{kOfStages}),
      row<&Spec::count_head>("parallel.pp.count_head",
                             "The head counts as a layer when layers are dealt", all_of(pp()),
                             NotPaired{kOfStages}),
      row<&Spec::layout>("parallel.pp.layout",
                         "What each stage of the pipeline holds, as in Ett|(tt|)*2ttL: E the "
                         "embedding, t a layer, L the head; empty: by the other keys",
                         all_of(pp()), NotPaired{kOfStages}),
  };
  return rows;
}

const OptionRows<FsdpSpec>& rows_of(const FsdpSpec&) {
  using Spec = FsdpSpec;
  static const OptionRows<FsdpSpec> rows = {
      row<&Spec::reshard_after_forward>(
          "parallel.fsdp.reshard_after_forward",
          "Free the parameters of a layer after its forward and gather them again for its backward",
          ShortName{"reshard"}, Flag{"--fsdp-no-reshard"}, shards()),
      row<&Spec::replicate_size>(
          "parallel.replicate_size",
          "hybrid: copies of the model along dp; each copy is sharded over the other ranks",
          Range{1, kMaxRanks}, ShortName{"copies"}, Flag{"--replicate-size"},
          all_of(Needed{"parallel.data_parallel", "hybrid"}, dp())),
      row<&Spec::prefetch>("parallel.fsdp.prefetch",
                           "Gather the next layer while the current one computes", shards()),
      row<&Spec::reduce_each_microbatch>(
          "parallel.fsdp.reduce_each_microbatch",
          "false: keep whole gradients and reduce them after the last microbatch",
          ShortName{"reduce_each"}, trained_shards()),
      row<&Spec::cpu_offload>(
          "parallel.cpu_offload",
          "fsdp, hybrid: keep shards, their gradients and the optimizer on the CPU",
          ShortName{"offload"}, shards()),
  };
  return rows;
}

const OptionRows<ReferenceSpec>& rows_of(const ReferenceSpec&) {
  using Spec = ReferenceSpec;
  static const OptionRows<ReferenceSpec> others = {
      row<&Spec::sequence_parallel>(
          "reference.sequence_parallel", "The reference shards the sequence over tp in norms",
          ShortName{"reference_sp"}, all_of(Needed{"reference.mesh.tp", nullptr})),
      row<&Spec::data_parallel>(
          "reference.data_parallel", "How dp of the reference holds parameters",
          Choices{{"replicate", "fsdp"}}, ShortName{"reference_data_parallel"},
          any_of(Needed{"reference.mesh.dp", nullptr}, Needed{"reference.mesh.cp", nullptr})),
      member<&Spec::folder>(),
  };
  static const auto rows = joined<ReferenceSpec>({sizes_of_reference(), others});
  return rows;
}

}  // namespace shardproof::sim
