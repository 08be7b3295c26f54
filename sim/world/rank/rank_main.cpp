#include "sim/world/rank/rank_main.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "base/error.h"
#include "model/precision.h"
#include "parallel/hf/save_weights.h"
#include "parallel/hf/scatter_weights.h"
#include "parallel/pp/simulate.h"
#include "parallel/pp/style.h"
#include "policy/noise.h"
#include "sim/case/idle_options.h"
#include "sim/case/policy_stages.h"
#include "sim/judge/diff/result_row.h"
#include "sim/judge/probe/rank_recorder.h"
#include "sim/judge/probe/reference_probe.h"
#include "sim/world/calls/call_trace.h"
#include "sim/world/clock/rank_clock.h"
#include "sim/world/rank/case_inputs.h"
#include "sim/world/rank/case_options.h"
#include "sim/world/rank/dump.h"
#include "sim/world/rank/fed_optimizer.h"
#include "sim/world/rank/golden_routes.h"
#include "sim/world/rank/inference_rank.h"
#include "sim/world/rank/member_noise.h"
#include "sim/world/rank/policy_life.h"
#include "sim/world/rank/refusals.h"
#include "sim/world/rank/stage_probe.h"
#include "sim/world/rank/token_runs.h"
#include "tensor/tensor_memory.h"
#include "train/trainer.h"

namespace shardproof::sim::world {
namespace {

// Runs one case on one rank.
class CaseRun {
 public:
  CaseRun(CaseSpec spec, const RankEnv& env)
      : spec_(std::move(spec)),
        env_(env),
        mesh_(spec_.parallel.mesh()),
        trace_(env.on_call, env.on_wait),
        comm_(mesh_, env.rank, env.make_backend, &trace_) {
    SHARDPROOF_ASSERT(spec_.parallel.world_size() == env.world_size,
                      fmt::format("a case of {} ranks in a world of {}",
                                  spec_.parallel.world_size(), env.world_size));
    golden_ = env.inputs->golden(env.golden_fd);
    recorder_.emplace(spec_, mesh_, env.rank, golden_.get(),
                      [this] { return trace_.call_count(); });
    if (!spec_.dump_file.empty()) dump_.emplace(*recorder_, spec_);
  }

  judge::RankReport run() {
    const auto start = std::chrono::steady_clock::now();
    const bool policy = spec_.is(ModelWorkload::kPolicy);
    const bool from_root = root_deals_weights(spec_);
    const bool reads = (!from_root || env_.rank == 0) && !draws_own_shards(spec_);
    inputs_ = env_.inputs->get(spec_, reads);
    if (spec_.precision == Precision::kFloat64 && !spec_.reference.folder.empty()) {
      auto of_reference = std::make_shared<CaseInputs>(*inputs_);
      of_reference->config.router.least_margin = kLeastMargin;  // as a golden refuses it
      inputs_ = std::move(of_reference);
    }
    const TensorMemory memory;  // of the rank's own tensors, without the shared inputs
    refuse_unsupported(spec_, inputs_->config, inputs_->batch.size());
    recorder_->judge_norms(
        {.eps = [inputs =
                     inputs_](const std::string& name) { return inputs->config.eps_of_norm(name); },
         .adds_one = inputs_->config.traits().unit_offset_norm});
    if (!spec_.reference.folder.empty()) {
      reference_.emplace(spec_, mesh_, env_.rank, full_sizes(inputs_->config, inputs_->batch));
      noise_ = MemberNoise::of(spec_);
      if (noise_) moving_.emplace(*reference_, noise_);
    }
    if (policy) {
      PolicyLife life(spec_, env_, *inputs_, golden_.get(), &trace_, probe());
      life.on_trainer = [this](const Trainer& trainer, int64_t moment) {
        recorder_->leave_to_others(trainer.observed_elsewhere(), moment);
      };
      const StepMetrics metrics = timed([&] { return life.run(); });
      leave_dump(life.trainer(), life.comm());
      return report_of(life.trainer(), metrics, memory, start);
    }
    const ParallelStyles styles = make_styles(parallel_options(spec_));
    Decoder model =
        planned_model(inputs_->config, reads ? inputs_->weights : weights_to_come(inputs_->config),
                      comm_, styles, spec_.frozen);
    if (noise_) noise_->wrap(model);
    if (golden_ && spec_.precision != Precision::kFloat64) {
      take_golden_routes(model, *golden_, comm_);
    }
    const RankSetup setup{.mesh = mesh_,
                          .rank = env_.rank,
                          .comm = comm_,
                          .probe = probe(),
                          .dtype = dtype_of_precision(name_of(spec_.precision)),
                          .device = at::Device(env_.device)};
    Trainer trainer(setup, model, styles, train_options(spec_));
    recorder_->leave_to_others(trainer.observed_elsewhere(), /*first_step=*/0);
    trainer.watch_actions([this](const Action& action, int64_t step, bool begins) {
      const std::string name = action_name(action, spec_.parallel.pp_options.chunks);
      if (env_.clock == nullptr) return trace_.act(name, step, begins);
      env_.clock->act(name, step, begins);
    });
    if (env_.on_tokens) trainer.watch_tokens(env_.on_tokens);
    if (from_root) take_weights(trainer);
    if (spec_.init == WeightInit::kOwnStream) keep_first_shards(trainer);
    if (draws_own_shards(spec_)) draw_own_shards(spec_, inputs_->config, trainer, mesh_, env_.rank);
    observe_masters(trainer, setup.probe, ObservationKind::kInitial);
    if (spec_.noise_std > 0) noise_weights(trainer);
    const StepMetrics metrics = timed([&] { return run_workload(trainer, setup); });
    if (!spec_.save_folder.empty()) {
      save_weights(spec_.save_folder, spec_.model, trainer.parameters(), trainer.masters(),
                   {.max_file_bytes = spec_.save_file_bytes,
                    .dtype = wider_type(setup.dtype),
                    .device = setup.device},
                   comm_);
    }
    leave_dump(trainer, comm_);
    if (reference_) reference_->finish();
    return report_of(trainer, metrics, memory, start);
  }

 private:
  using WallTime = std::chrono::steady_clock::time_point;

  judge::RankReport report_of(const Trainer& trainer, const StepMetrics& metrics,
                              const TensorMemory& memory, WallTime start) {
    judge::RankReport report = recorder_->finish();
    report.rank = env_.rank;
    report.calls = trace_.calls();
    report.call_counts = trace_.counts();
    report.timeline = env_.clock != nullptr ? env_.clock->timeline() : trace_.timeline();
    report.peak_tensor_bytes = memory.peak_bytes();
    report.metrics.update({{"loss", metrics.loss},
                           {"grad_norm", metrics.grad_norm},
                           {"tokens", metrics.tokens},
                           {"sequences", metrics.sequences}});
    report.metrics["held_bytes"] = held_bytes(trainer);
    add_bubble(report, trainer);
    // A policy ends on another mesh than the picture's.
    const bool drawn = !spec_.is(ModelWorkload::kPolicy);
    if (drawn && env_.rank == 0) report.metrics["parameters"] = holdings(trainer);
    if (drawn && mesh_.coordinate("tp", env_.rank) == 0) {
      report.metrics["tokens_held"] = tokens(trainer);
    }
    if (env_.rank == 0) {
      for (std::string& idle : idle_options(spec_)) report.warnings.push_back(std::move(idle));
    }
    report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return report;
  }

  // The idle share of a step that the papers give for the schedule, for comparison with the
  // clock's.
  void add_bubble(judge::RankReport& report, const Trainer& trainer) const {
    if (!spec_.is(ModelWorkload::kTrain) || mesh_.size("pp") == 1) return;
    const Pipeline pipeline = pipeline_of(parallel_options(spec_).pipeline, mesh_);
    const auto share = bubble_formula(pipeline, std::ssize(trainer.held()), usual_costs(pipeline));
    if (share) report.metrics["bubble_formula"] = *share;
  }

  Probe& probe() {
    if (watched_) return *watched_;
    Probe& listener = moving_      ? static_cast<Probe&>(*moving_)
                      : reference_ ? static_cast<Probe&>(*reference_)
                      : dump_      ? static_cast<Probe&>(*dump_)
                                   : *recorder_;
    return watched_.emplace(listener, env_.on_tensor, env_.clock);
  }

  // Receives the weights from rank 0, which alone has read them.
  void take_weights(Trainer& trainer) {
    const WeightMap* full = env_.rank == 0 ? inputs_->weights.get() : nullptr;
    trainer.restore(scatter_weights(trainer.parameters(), full, comm_, trainer.device()),
                    trainer.states(),
                    /*step=*/0);
    if (env_.rank != 0) keep_first_shards(trainer);
  }

  // Whether the optimizer is tested with the golden's gradients. Another layout's are never whole
  // on a rank.
  bool feeds_optimizer() const {
    return golden_ && spec_.precision == Precision::kFloat64 && !spec_.reference.is_set();
  }

  // For the optimizer's test, where the weights are not parts of the inputs'.
  void keep_first_shards(const Trainer& trainer) {
    if (!feeds_optimizer()) return;
    for (const at::Tensor& master : trainer.masters()) first_shards_.push_back(master.clone());
  }

  void noise_weights(Trainer& trainer) {
    add_noise(trainer, comm_, spec_.noise_std, spec_.seed);
    first_shards_.clear();
    keep_first_shards(trainer);
    observe_masters(trainer, probe(), ObservationKind::kParameter);
  }

  // This rank's part of a parameter before the first step, for the optimizer's test.
  at::Tensor first_shard(const Trainer& trainer, const RankSetup& setup, size_t index) const {
    if (!first_shards_.empty()) return first_shards_[index].clone();
    return initial_shard(*trainer.parameters()[index], *inputs_->weights, setup);
  }

  template <class Work>
  StepMetrics timed(const Work& work) {
    const ClockRun time(env_.clock);
    return work();
  }

  StepMetrics run_workload(Trainer& trainer, const RankSetup& setup) {
    StepMetrics metrics;
    const Batch batch = batch_as_read(spec_, inputs_->batch, setup);
    if (spec_.is(ModelWorkload::kLogprobs)) {
      observe_scores(trainer.score(batch), trainer.token_cuts().sample_axes);
      return metrics;
    }
    const TrainOptions options = train_options(spec_);
    for (int64_t step = 1; step <= spec_.steps; ++step) {
      if (env_.on_step) env_.on_step(step);
      metrics = trainer.step(batch);
      if (feeds_optimizer()) {
        const ClockPause pause(env_.clock);
        const auto initial = [&](size_t index) { return first_shard(trainer, setup, index); };
        observe_fed_optimizer(trainer, setup, *golden_, initial, options.optimizer,
                              options.max_norm, steps_behind(spec_, step));
      }
    }
    return metrics;
  }

  // Each rank has zeros in the rows of other samples, so that those of all add up to the whole.
  void observe_scores(const at::Tensor& scores, const std::vector<std::string>& sample_axes) {
    if (spec_.sample_rows > 0 || !probe().listens(Phase::kStep)) return;
    probe().observe({.kind = ObservationKind::kScores,
                     .name = "scores",
                     .phase = Phase::kStep,
                     .tensor = scores,
                     .part = Part::kPartial,
                     .partial_axes = sample_axes});
  }

  static nlohmann::json held_bytes(const Trainer& trainer) {
    const HeldBytes held = trainer.held_bytes();
    return {{"parameters", held.parameters},
            {"gradients", held.gradients},
            {"optimizer", held.optimizer}};
  }

  // The layouts of the parameters, for the report's picture.
  static nlohmann::json holdings(const Trainer& trainer) {
    nlohmann::json parameters = nlohmann::json::object();
    for (const ParameterPtr& parameter : trainer.parameters()) {
      parameters[parameter->name] = {{"layout", parameter->layout.describe()},
                                     {"global_shape", parameter->global_shape}};
    }
    return parameters;
  }

  // The rank's tokens, for the picture. The first rank of each share of samples adds the uncut
  // rows.
  nlohmann::json tokens(const Trainer& trainer) const {
    const TokenCuts& cuts = trainer.token_cuts();
    const bool first = is_first_of_samples(cuts, mesh_, env_.rank) &&
                       mesh_.coordinate(cuts.stage_axis, env_.rank) == 0;
    return held_json(trainer.held(), inputs_->batch.seq_len(), first);
  }

  // `comm` has the ranks of the mesh, on any mesh.
  void leave_dump(const Trainer& trainer, MeshComm& comm) {
    if (!dump_) return;
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const ParameterPtr& parameter : trainer.parameters()) {
      shapes[parameter->name] = parameter->global_shape;
    }
    write_dump(spec_, dump_->kept(), inputs_->batch, shapes, comm);
  }

  CaseSpec spec_;
  const RankEnv& env_;
  Mesh mesh_;
  CallTrace trace_;
  MeshComm comm_;
  std::shared_ptr<const GoldenRecord> golden_;
  std::optional<judge::RankRecorder> recorder_;
  std::optional<DumpProbe> dump_;
  std::optional<judge::ReferenceProbe>
      reference_;  // instead of a comparison, in a run for a reference
  std::shared_ptr<const MemberNoise> noise_;
  std::optional<GradientNoiseProbe> moving_;
  std::optional<WatchedProbe> watched_;
  std::shared_ptr<const CaseInputs> inputs_;
  std::vector<at::Tensor> first_shards_;  // float64; empty: they are parts of the inputs' weights
};

}  // namespace

std::string rank_main(const CaseSpec& spec, const RankEnv& env) {
  if (env.rank >= spec.parallel.mesh().world_size())
    return judge::encode(run_inference_rank(spec, env));
  CaseRun run(spec, env);
  return judge::encode(run.run());
}

}  // namespace shardproof::sim::world
