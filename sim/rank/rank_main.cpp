#include "sim/rank/rank_main.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <chrono>
#include <optional>

#include "base/error.h"
#include "parallel/cp/apply.h"
#include "parallel/tp/apply.h"
#include "parallel/ulysses/apply.h"
#include "sim/compare/rank_recorder.h"
#include "sim/compare/result_row.h"
#include "sim/rank/case_inputs.h"
#include "sim/rank/clocked_probe.h"
#include "sim/rank/dump.h"
#include "sim/rank/fed_optimizer.h"
#include "sim/rank/tensor_memory.h"
#include "sim/trace/call_trace.h"
#include "train/trainer.h"

namespace shardproof::sim {
namespace {

at::ScalarType dtype_of(const std::string& precision) {
  if (precision == "float64") return at::kDouble;
  if (precision == "float32") return at::kFloat;
  if (precision == "bfloat16") return at::kBFloat16;
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("unknown precision '{}'", precision),
               .fix = "use float64, float32 or bfloat16"});
}

BatchingOptions batching_options(const BatchingSpec& spec) {
  return {.kind = spec.kind == "packed"    ? BatchingKind::kPacked
                  : spec.kind == "dynamic" ? BatchingKind::kDynamic
                                           : BatchingKind::kFixed,
          .token_budget = spec.tokens,
          .algorithm = spec.algorithm == "balanced" ? PackAlgorithm::kBalanced
                                                    : PackAlgorithm::kFirstFitDecreasing,
          .length_round = spec.length_round};
}

TrainOptions train_options(const CaseSpec& spec) {
  TrainOptions options;
  options.loss = {
      .kind = spec.loss.kind == "nll" ? LossKind::kNll : LossKind::kClippedPolicyGradient,
      .normalization = spec.loss.normalization == "sequence" ? LossNormalization::kSequence
                                                             : LossNormalization::kToken,
      .clip_eps = spec.loss.eps,
      .kl_beta = spec.loss.beta};
  options.optimizer = {
      .kind = spec.optimizer.kind == "SGD" ? OptimizerKind::kSgd : OptimizerKind::kAdamW,
      .lr = spec.optimizer.lr,
      .beta1 = spec.optimizer.beta1,
      .beta2 = spec.optimizer.beta2,
      .eps = spec.optimizer.eps,
      .weight_decay = spec.optimizer.weight_decay,
      .momentum = spec.optimizer.momentum};
  options.max_norm = spec.optimizer.max_norm;
  options.micro_batch_size = spec.micro_batch_size;
  options.sequence_parallel = spec.parallel.sequence_parallel;
  options.batching = batching_options(spec.batching);
  return options;
}

// What this version cannot shard, said before any rank communicates.
void refuse_unsupported(const CaseSpec& spec, const CaseInputs& inputs) {
  const auto refuse = [](std::string what, std::string fix) {
    throw Error({.kind = ErrorKind::kRefused, .what = std::move(what), .fix = std::move(fix)});
  };
  if (spec.parallel.data_parallel != "replicate") {
    refuse(fmt::format("data_parallel: {} is not supported yet", spec.parallel.data_parallel),
           "use data_parallel: replicate");
  }
  if (spec.workload == "train" && !spec.data.uneven &&
      inputs.batch.size() % spec.parallel.dp != 0) {
    refuse(fmt::format("the global batch of {} samples does not divide by data_parallel_size={}",
                       inputs.batch.size(), spec.parallel.dp),
           "change the batch or the mesh, or set data.uneven: true to deal uneven shares");
  }
}

// One case on one rank, piece by piece.
class CaseRun {
 public:
  CaseRun(CaseSpec spec, const RankEnv& env)
      : spec_(std::move(spec)),
        env_(env),
        mesh_(spec_.parallel.mesh()),
        trace_(env.rank, env.on_call, env.on_wait),
        comm_(mesh_, env.rank, env.make_backend, &trace_) {
    SHARDPROOF_ASSERT(
        mesh_.world_size() == env.world_size,
        fmt::format("a mesh of {} ranks in a world of {}", mesh_.world_size(), env.world_size));
    if (env.golden_fd >= 0) {
      golden_ = env.inputs
                    ? env.inputs->golden(env.golden_fd)
                    : std::make_shared<const GoldenRecord>(GoldenRecord::from_fd(env.golden_fd));
    }
    recorder_.emplace(spec_, mesh_, env.rank, golden_.get(),
                      [this] { return trace_.call_count(); });
    if (!spec_.dump_file.empty()) dump_.emplace(*recorder_, spec_.steps);
  }

  RankReport run() {
    const auto start = std::chrono::steady_clock::now();
    inputs_ = env_.inputs ? env_.inputs->get(spec_) : load_case_inputs(spec_);
    const TensorMemory memory;  // of the rank's own tensors: the inputs belong to the process
    refuse_unsupported(spec_, *inputs_);
    Decoder model(inputs_->config, inputs_->weights);
    apply_tensor_parallel(model, comm_,
                          {.sequence_parallel = spec_.parallel.sequence_parallel,
                           .custom_plan = spec_.parallel.custom_plan});
    apply_context_parallel(model, comm_, {});
    apply_ulysses(model, comm_);
    const RankSetup setup{.mesh = mesh_,
                          .rank = env_.rank,
                          .comm = comm_,
                          .probe = probe(),
                          .dtype = dtype_of(spec_.precision),
                          .device = at::Device(env_.device)};
    Trainer trainer(setup, model, train_options(spec_));
    const StepMetrics metrics = run_timed(trainer, setup);
    if (dump_) write_dump(spec_.dump_file, dump_->kept(), inputs_->batch, shapes(trainer), comm_);

    RankReport report = recorder_->finish();
    report.rank = env_.rank;
    report.calls = trace_.calls();
    report.timeline = env_.clock != nullptr ? env_.clock->timeline() : trace_.timeline();
    report.findings = trace_.findings();
    for (std::string& finding : trace_.left_pending()) {
      report.findings.push_back(std::move(finding));
    }
    report.peak_tensor_bytes = memory.peak_bytes();
    report.metrics = {{"loss", metrics.loss},
                      {"grad_norm", metrics.grad_norm},
                      {"tokens", metrics.tokens},
                      {"sequences", metrics.sequences}};
    if (env_.rank == 0) report.metrics["parameters"] = holdings(trainer);
    report.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return report;
  }

 private:
  Probe& probe() {
    Probe& listener = dump_ ? static_cast<Probe&>(*dump_) : *recorder_;
    return clocked_ ? *clocked_ : clocked_.emplace(listener, env_.clock);
  }

  StepMetrics run_timed(Trainer& trainer, const RankSetup& setup) {
    const ClockRun time(env_.clock);
    return run_workload(trainer, setup);
  }

  StepMetrics run_workload(Trainer& trainer, const RankSetup& setup) {
    StepMetrics metrics;
    if (spec_.workload == "logprobs") {
      trainer.score(inputs_->batch);
      return metrics;
    }
    const TrainOptions options = train_options(spec_);
    for (int64_t step = 1; step <= spec_.steps; ++step) {
      if (env_.on_step) env_.on_step(step);
      metrics = trainer.step(inputs_->batch);
      if (golden_ && spec_.precision == "float64") {
        const ClockPause pause(env_.clock);
        observe_fed_optimizer(trainer, setup, *golden_, *inputs_->weights, options.optimizer,
                              options.max_norm, step);
      }
    }
    return metrics;
  }

  // Who holds what, for the report's picture.
  static nlohmann::json holdings(const Trainer& trainer) {
    nlohmann::json parameters = nlohmann::json::object();
    for (const ParameterPtr& parameter : trainer.parameters()) {
      parameters[parameter->name] = {{"layout", parameter->layout.describe()},
                                     {"global_shape", parameter->global_shape}};
    }
    return parameters;
  }

  static std::map<std::string, std::vector<int64_t>> shapes(const Trainer& trainer) {
    std::map<std::string, std::vector<int64_t>> shapes;
    for (const ParameterPtr& parameter : trainer.parameters()) {
      shapes[parameter->name] = parameter->global_shape;
    }
    return shapes;
  }

  CaseSpec spec_;
  const RankEnv& env_;
  Mesh mesh_;
  CallTrace trace_;
  MeshComm comm_;
  std::shared_ptr<const GoldenRecord> golden_;
  std::optional<RankRecorder> recorder_;
  std::optional<DumpProbe> dump_;
  std::optional<ClockedProbe> clocked_;
  std::shared_ptr<const CaseInputs> inputs_;
};

}  // namespace

std::string rank_main(const std::string& request, const RankEnv& env) {
  CaseRun run(case_spec_from_json(nlohmann::json::parse(request)), env);
  return encode(run.run());
}

}  // namespace shardproof::sim
