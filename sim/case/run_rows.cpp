// Options of a case's computation: microbatches, stages, loss, optimizer.
#include <fmt/format.h>

#include "sim/case/needs.h"

namespace shardproof::sim {

using enum KeyType;
namespace {

OptionRows<StageSpec> sizes_of_load() {
  const Needs loads = all_of(stage(StageKind::kLoad));
  OptionRows<StageSpec> rows;
  for (const TrainingAxis& axis : kTrainingAxes) {
    const std::string path = std::string("run.stages[].") + axis.key;
    const std::string doc =
        fmt::format("load: ranks of axis {}{}", axis.name,
                    rows.empty() ? "; the mesh stays when no size is given" : "");
    rows.push_back(
        key<StageSpec>(path.c_str(), kInteger, 0, doc.c_str(), Range{0, kMaxRanks}, loads));
  }
  const Needs of_experts = with_experts(loads);
  for (const ExpertPart& part : kExpertParts) {
    const std::string path = std::string("run.stages[].") + part.key;
    const std::string doc = fmt::format("load: ranks of part {}", part.name);
    rows.push_back(key<StageSpec>(path.c_str(), kInteger, 0, doc.c_str(), Range{0, kMaxRanks},
                                  of_experts, kOfExperts));
  }
  return rows;
}

}  // namespace

const OptionRows<StageSpec>& rows_of(const StageSpec&) {
  using Spec = StageSpec;
  constexpr auto key = [](auto&&... about) { return sim::key<StageSpec>(about...); };
  constexpr Range samples{0, 1e6};
  static const OptionRows<StageSpec> of_stages = {
      row<&Spec::kind>("run.stages[].do", "Kind of the stage", Default::kFollows,
                       all_of(workload(ModelWorkload::kPolicy))),
      row<&Spec::global_batch_size>(
          "run.stages[].train_global_batch_size",
          "train: samples of an optimizer step; 0: run.train_global_batch_size", samples,
          all_of(stage(StageKind::kTrain))),
      row<&Spec::micro_batch_size>(
          "run.stages[].train_micro_batch_size",
          "train: samples of a dp rank's microbatch; 0: run.train_micro_batch_size", samples,
          Golden::kIgnores, all_of(stage(StageKind::kTrain))),
      key("run.stages[].logprob_batch_size", kInteger, 0,
          "score, reference: samples of a dp rank's microbatch; 0: run.logprob_batch_size", samples,
          any_of(stage(StageKind::kScore), stage(StageKind::kReference))),
      row<&Spec::eval_mode>("run.stages[].eval_mode",
                            "train: compute the metrics, without gradients and optimizer step",
                            all_of(stage(StageKind::kTrain))),
      row<&Spec::interrupted_after>(
          "run.stages[].interrupted_after",
          "train: the call throws in the global batch after so many, and a second call has the "
          "samples that remain; 0: it does not throw",
          samples, all_of(stage(StageKind::kTrain))),
      row<&Spec::fails>(
          "run.stages[].fails",
          "train, score, reference: every rank throws, again and again at a later "
          "moment; save: rank 0 cannot write all files; load: one rank cannot read "
          "them. The stage must fail on all ranks and have no effect",
          any_of(stage(StageKind::kTrain), stage(StageKind::kScore), stage(StageKind::kReference),
                 stage(StageKind::kSave), stage(StageKind::kLoad))),
      row<&Spec::max_file_bytes>("run.stages[].max_file_bytes",
                                 "export: tensor bytes of one file; 0: one file has all tensors",
                                 Range{0, 1e15}, Golden::kIgnores,
                                 all_of(stage(StageKind::kExport))),
  };
  const Needs loads = all_of(stage(StageKind::kLoad));
  static const OptionRows<StageSpec> of_loads = {
      key("run.stages[].sequence_parallel", kBool, false,
          "load: shard the sequence over tp in norms", loads),
      key("run.stages[].data_parallel", kText, "",
          "load: how dp holds parameters; default: as before",
          Choices{all_names<DataParallelKind>()}, loads),
      member<&Spec::parallel>(Golden::kIgnores),
  };
  static const auto rows = joined<StageSpec>({of_stages, sizes_of_load(), of_loads});
  return rows;
}

const OptionRows<BatchingSpec>& rows_of(const BatchingSpec&) {
  using Spec = BatchingSpec;
  constexpr auto key = [](auto&&... about) { return sim::key<BatchingSpec>(about...); };
  constexpr Range tokens{1, 1e9};
  const Needed packs{"run.sequence_packing.enabled", true};
  const Needed groups{"run.dynamic_batching.enabled", true};
  static const OptionRows<BatchingSpec> rows = {
      member<&Spec::kind>(),
      member<&Spec::token_budget>(),
      member<&Spec::logprob_budget>(),
      key("run.sequence_packing.enabled", kBool, false,
          "Pack sequences into rows; each attends only to itself", ShortName{"packing"}),
      key("run.sequence_packing.train_mb_tokens", kInteger, nullptr,
          "Positions of a packed row; default: one row with a dp rank's whole share", tokens,
          ShortName{"mb_tokens"}, with(packs, trains())),
      key("run.sequence_packing.logprob_mb_tokens", kInteger, nullptr,
          "Positions of a packed row when logprobs are scored", tokens,
          with(packs, scores_or_refers())),
      row<&Spec::algorithm>(
          "run.sequence_packing.algorithm",
          "Packing of each dp rank's own share, or into rows of similar size over the whole batch",
          ShortName{"bins"}, all_of(packs)),
      key("run.dynamic_batching.enabled", kBool, false,
          "Group rows of similar length, as many as the tokens of a microbatch allow",
          ShortName{"dynamic"}),
      key("run.dynamic_batching.train_mb_tokens", kInteger, nullptr,
          "Most rows times length in a microbatch; default: a dp rank's whole share", tokens,
          with(groups, trains())),
      key("run.dynamic_batching.logprob_mb_tokens", kInteger, nullptr,
          "Most rows times length in a microbatch when logprobs are scored", tokens,
          with(groups, scores_or_refers())),
      row<&Spec::length_round>("run.dynamic_batching.sequence_length_round",
                               "Row lengths are rounded up to a multiple of this", Range{1, 1e6},
                               all_of(groups)),
  };
  return rows;
}

const OptionRows<LossSpec>& rows_of(const LossSpec&) {
  using Spec = LossSpec;
  static const OptionRows<LossSpec> rows = {
      row<&Spec::temperature>("run.temperature", "Divisor of the logits", Range{1e-6, 1e6}),
      key<LossSpec>("run.generation.temperature", kNumber, nullptr,
                    "Another name for run.temperature", Range{1e-6, 1e6},
                    NotPaired{"another name of run.temperature"}),
      row<&Spec::kind>("run.loss.kind", "Kind of the loss", ShortName{"loss"}, trains()),
      row<&Spec::clip_eps>("run.loss.eps", "clipped_pg: the ratio is clamped to 1 +- eps",
                           Range{0, kMaxConstant}, all_of(Needed{"run.loss.kind", "clipped_pg"})),
      row<&Spec::kl_beta>("run.loss.beta",
                          "clipped_pg: weight of the KL term; preference: weight of the margin",
                          Range{-kMaxConstant, kMaxConstant},
                          any_value("run.loss.kind", {"clipped_pg", "preference"})),
      row<&Spec::normalization>("run.loss.normalization", "Items over which the loss is a mean",
                                trains()),
  };
  return rows;
}

const OptionRows<SideLossOptions>& rows_of(const SideLossOptions&) {
  using Spec = SideLossOptions;
  constexpr Range coefficient{0, kMaxConstant};
  static const OptionRows<SideLossOptions> rows = {
      row<&Spec::balance>("run.experts.balance.coefficient",
                          "Coefficient of the balancing loss of experts; default: "
                          "router_aux_loss_coef where config.json sets output_router_logits",
                          coefficient, Default::kFollows, ShortName{"balance"},
                          with_experts(trains()), kOfExperts),
      row<&Spec::groups>(
          "run.experts.groups", "The tokens over which the balancing and the z loss are one loss",
          ShortName{"groups"},
          any_of(above_0("run.experts.balance.coefficient"), above_0("run.experts.z_coefficient")),
          kOfExperts),
      row<&Spec::form>("run.experts.balance.form",
                       "pooled: one balancing loss over the tokens of all layers together, as in "
                       "transformers; that of config.json always is",
                       ShortName{"form"}, all_of(above_0("run.experts.balance.coefficient")),
                       kOfExperts),
      row<&Spec::z>("run.experts.z_coefficient",
                    "Coefficient of the z loss, which keeps the logits of routers small",
                    coefficient, ShortName{"z"}, with_experts(trains()), kOfExperts),
  };
  return rows;
}

const OptionRows<BiasRule>& rows_of(const BiasRule&) {
  using Spec = BiasRule;
  const auto has_bias = [](const FamilyTraits& family) {
    return family.has_experts() && family.scores != RouterScores::kSoftmaxOfChosen;
  };
  static const OptionRows<BiasRule> rows = {
      row<&Spec::rate>("run.experts.bias.rate",
                       "How far the selection bias of an expert moves after each step, up when it "
                       "had fewer routes than the average, down when more; 0: there is no bias",
                       Range{0, kMaxConstant}, ShortName{"bias_rate"},
                       in_families(has_bias, trains()), kOfExperts),
      row<&Spec::centered>(
          "run.experts.bias.centered", "The bias keeps its mean over the experts of a layer",
          ShortName{"centered"}, all_of(above_0("run.experts.bias.rate")), kOfExperts),
  };
  return rows;
}

const OptionRows<CapacityRule>& rows_of(const CapacityRule&) {
  using Spec = CapacityRule;
  static const OptionRows<CapacityRule> rows = {
      row<&Spec::factor>("run.experts.capacity.factor",
                         "An expert keeps this multiple of the average number of routes, rounded "
                         "up, and drops the others; 0: no limit",
                         Range{0, kMaxConstant}, ShortName{"capacity"}, with_experts(trains()),
                         kOfExperts),
      row<&Spec::minimum>("run.experts.capacity.minimum", "Routes that an expert keeps at least",
                          Range{0, 1e9}, all_of(above_0("run.experts.capacity.factor")),
                          kOfExperts),
      row<&Spec::policy>("run.experts.capacity.policy",
                         "Which routes stay: those with the largest weights, or the first",
                         ShortName{"policy"}, all_of(above_0("run.experts.capacity.factor")),
                         kOfExperts),
      row<&Spec::scope>("run.experts.capacity.scope",
                        "The tokens that share a capacity: those of a rank's microbatch, or of "
                        "each sequence",
                        ShortName{"scope"}, all_of(above_0("run.experts.capacity.factor")),
                        kOfExperts),
  };
  return rows;
}

const OptionRows<LossScaleOptions>& rows_of(const LossScaleOptions&) {
  using Spec = LossScaleOptions;
  static const OptionRows<LossScaleOptions> rows = {
      row<&Spec::init_scale>("run.loss_scale.init_scale",
                             "float16: initial factor of the loss, as in torch.amp.GradScaler",
                             Range{1e-6, 1e30}, with({"precision", "float16"}, trains())),
      row<&Spec::growth_factor>(
          "run.loss_scale.growth_factor",
          "Factor of the loss scale after growth_interval steps without an overflow",
          Range{1, kMaxConstant}, with({"precision", "float16"}, trains())),
      row<&Spec::backoff_factor>(
          "run.loss_scale.backoff_factor",
          "Factor of the loss scale after an overflow, whose step all ranks skip", Range{1e-6, 1},
          with({"precision", "float16"}, trains())),
      row<&Spec::growth_interval>("run.loss_scale.growth_interval",
                                  "Steps without an overflow after which the loss scale grows",
                                  Range{1, 1e9}, with({"precision", "float16"}, trains())),
  };
  return rows;
}

const OptionRows<OptimizerSpec>& rows_of(const OptimizerSpec&) {
  using Spec = OptimizerSpec;
  constexpr auto key = [](auto&&... about) { return sim::key<OptimizerSpec>(about...); };
  constexpr Range constant{0, kMaxConstant};
  const OptimizerSpec plain;
  static const OptionRows<OptimizerSpec> rows = {
      row<&Spec::max_norm>("run.max_grad_norm",
                           "Norm to which gradients are clipped; null or 0: no clipping",
                           Range{0, 1e300}, Null::kAllowed, trains()),
      row<&Spec::norm_type>("run.grad_norm.type",
                            "p of the gradient norm: a number from 0.25 to 16 in quotes, or inf",
                            ShortName{"norm"}, trains()),
      key("run.scheduler", kRecords, nlohmann::json::array(),
          "Learning-rate scheduler, or a list of schedulers that ends with {milestones: ..}",
          trains()),
      member<&Spec::schedulers>(),
      member<&Spec::milestones>(),
      row<&Spec::kind>(
          "run.optimizer.name",
          "Optimizer; torch.optim.AdamW is the same as AdamW. Muon: for the matrices of "
          "hidden layers, and AdamW for the other parameters",
          ShortName{"optimizer"}, trains()),
      row<&Spec::lr>("run.optimizer.kwargs.lr", "Learning rate", constant, trains()),
      member<&Spec::beta1>(),
      member<&Spec::beta2>(),
      key("run.optimizer.kwargs.betas", kNumberPair,
          nlohmann::json::array({plain.beta1, plain.beta2}),
          "AdamW, Muon: decay rates of AdamW's moments", Range{0, 0.9999999999},
          any_value("run.optimizer.name", {"AdamW", "Muon"})),
      // With 0, AdamW divides 0 by 0 wherever a gradient is 0, as that of every padded row is.
      row<&Spec::eps>(
          "run.optimizer.kwargs.eps", "AdamW, Muon: added to the root of AdamW's second moment",
          Range{1e-30, constant.high}, any_value("run.optimizer.name", {"AdamW", "Muon"})),
      row<&Spec::weight_decay>(
          "run.optimizer.kwargs.weight_decay",
          "Weight decay of every parameter, with SGD too; Muon: 0.1 if not given", constant,
          trains()),
      row<&Spec::momentum>(
          "run.optimizer.kwargs.momentum",
          "SGD, Muon: share of the previous step that is kept; Muon: 0.95 if not given", constant,
          any_value("run.optimizer.name", {"SGD", "Muon"})),
      row<&Spec::dampening>("run.optimizer.kwargs.dampening",
                            "SGD with momentum: share of the gradient that is left out",
                            Range{0, 1},
                            all_of(Needed{"run.optimizer.name", "SGD"},
                                   Needed{"run.optimizer.kwargs.momentum", 0.5, 0.0})),
      row<&Spec::nesterov>(
          "run.optimizer.kwargs.nesterov",
          "SGD with momentum, Muon: make Nesterov's step; Muon: true if not given",
          Needs{{{{"run.optimizer.name", "SGD"}, {"run.optimizer.kwargs.momentum", 0.5, 0.0}},
                 {{"run.optimizer.name", "Muon"}}}}),
      // Options that change how PyTorch makes a step, or that no step here supports. null: PyTorch
      // chooses.
      key("run.optimizer.kwargs.foreach", kBool, nullptr,
          "PyTorch's loop over parameters; the values do not change", Null::kAllowed, trains()),
      key("run.optimizer.kwargs.fused", kBool, nullptr,
          "PyTorch's fused step, which excludes foreach; the values do not change", Null::kAllowed,
          trains()),
      key("run.optimizer.kwargs.amsgrad", kBool, false, "AdamW, Muon: only false is supported",
          trains()),
      key("run.optimizer.kwargs.maximize", kBool, false, "Only false is supported", trains()),
      key("run.optimizer.kwargs.capturable", kBool, false, "AdamW, Muon: only false is supported",
          trains()),
      key("run.optimizer.kwargs.differentiable", kBool, false, "Only false is supported", trains()),
  };
  return rows;
}

const OptionRows<SchedulerSpec>& rows_of(const SchedulerSpec&) {
  using Spec = SchedulerSpec;
  constexpr auto key = [](auto&&... about) { return sim::key<SchedulerSpec>(about...); };
  static const OptionRows<SchedulerSpec> rows = {
      key("run.scheduler[].name", kText, "",
          "Scheduler; torch.optim.lr_scheduler.LinearLR is the same as LinearLR",
          Choices{all_names<ScheduleKind>()}, trains()),
      member<&Spec::kind>(),
      key("run.scheduler[].kwargs", kMap, nlohmann::json::object(),
          "Constants of the scheduler under PyTorch's names; lr_lambda is a factor, or a list with "
          "one per step",
          trains()),
      key("run.scheduler[].milestones", kIntegers, nlohmann::json::array(),
          "Steps after which the next scheduler takes over", Range{0, kManySteps}, trains()),
      member<&Spec::factor>(),
      member<&Spec::start_factor>(),
      member<&Spec::end_factor>(),
      member<&Spec::total_iters>(),
      member<&Spec::t_max>(),
      member<&Spec::eta_min>(),
      member<&Spec::lr_lambda>(),
  };
  return rows;
}

}  // namespace shardproof::sim
