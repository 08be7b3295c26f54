// Runs the sharded function of a workload on one rank, under the judge's recorder.
#include <ATen/ATen.h>

#include <chrono>
#include <optional>

#include "base/elapsed.h"
#include "base/error.h"
#include "model/precision.h"
#include "sim/case/idle_options.h"
#include "sim/judge/probe/rank_recorder.h"
#include "sim/uses/proofs/built_in_rows.h"
#include "sim/uses/proofs/passes.h"
#include "sim/uses/proofs/run_workload.h"
#include "sim/world/calls/call_trace.h"
#include "sim/world/clock/rank_clock.h"
#include "tensor/shard.h"
#include "tensor/tensor_memory.h"

namespace shardproof::sim::proofs {
namespace {

class ShardedRun {
 public:
  ShardedRun(const Workload& workload, const CaseSpec& spec, const world::RankEnv& env)
      : workload_(workload),
        spec_(spec),
        env_(env),
        mesh_(spec.parallel.mesh()),
        trace_(env.on_call, env.on_wait),
        comm_(mesh_, env.rank, env.make_backend, &trace_) {
    if (env.golden_fd >= 0) golden_ = GoldenRecord::from_fd(env.golden_fd);
    recorder_.emplace(spec_, mesh_, env.rank, golden_ ? &*golden_ : nullptr,
                      [this] { return trace_.call_count(); });
  }

  judge::RankReport run() {
    const auto start = std::chrono::steady_clock::now();
    const TensorMemory memory;
    cut_inputs();
    WorkloadNotes notes;
    notes.tensor_bytes = [&memory] { return memory.current_bytes(); };
    run_timed(notes);
    for (auto input = inputs_.rbegin(); input != inputs_.rend(); ++input) {
      const at::Tensor gradient = gradient_of(input->name);
      if (gradient.defined())
        observe(ObservationKind::kGradient, observed_name(ObservationKind::kGradient, input->name),
                Phase::kStep, gradient, *input);
    }
    judge::RankReport report = recorder_->finish();
    report.rank = env_.rank;
    report.calls = trace_.calls();
    report.call_counts = trace_.counts();
    report.timeline = env_.clock != nullptr ? env_.clock->timeline() : trace_.timeline();
    report.peak_tensor_bytes = memory.peak_bytes();
    report.warnings = notes.warnings;
    if (env_.rank == 0) {
      report.metrics["parameters"] = holdings();
      for (std::string& idle : idle_options(spec_)) report.warnings.push_back(std::move(idle));
    }
    if (!notes.figures.empty()) report.metrics["figures"] = notes.figures;
    report.seconds = seconds_since(start);
    return report;
  }

 private:
  void cut_inputs() {
    Draw draw(spec_.seed);
    inputs_ = workload_.inputs(draw, spec_.options);
    const at::ScalarType dtype = dtype_of_precision(name_of(spec_.precision));
    for (const WorkloadTensor& input : inputs_) {
      const at::Tensor part = with_strides(cut(input.tensor, input.layout, mesh_, env_.rank));
      local_[input.name] = leaf_of(part, dtype, at::Device(env_.device));
    }
  }

  void run_timed(WorkloadNotes& notes) {
    const world::ClockRun time(env_.clock);
    const WorkloadTensors outputs = forward(notes);
    observe_outputs(outputs);
    go_back(outputs);
    if (notes.after_backward) observe_outputs(notes.after_backward());
  }

  WorkloadTensors forward(WorkloadNotes& notes) {
    if (workload_.sharded) return workload_.sharded(local_, comm_, spec_.options);
    return workload_.sharded_with_notes(local_, comm_, spec_.options, notes);
  }

  // A part that this rank's function did not use has the gradient 0.
  at::Tensor gradient_of(const std::string& input) const {
    const at::Tensor& leaf = local_.at(input);
    const at::Tensor gradient = gradient_of_leaf(leaf);
    const std::string name = observed_name(ObservationKind::kGradient, input);
    const bool wanted = returned_ && golden_ && golden_->find(Phase::kStep, 1, name) != nullptr;
    return gradient.defined() || !wanted ? gradient : at::zeros_like(leaf.detach());
  }

  void observe_outputs(const WorkloadTensors& outputs) {
    if (outputs.empty()) return;
    returned_ = true;
    recorder_->hold_everything();
    for (const WorkloadTensor& output : outputs) {
      observe(kind_of_name(Phase::kForward, output.name), output.name, Phase::kForward,
              output.tensor.detach(), output);
    }
  }

  void observe(ObservationKind kind, const std::string& name, Phase phase, const at::Tensor& tensor,
               const WorkloadTensor& held) {
    const world::ClockPause pause(env_.clock);
    std::vector<std::string> axes;  // those of several ranks, since one rank's addend is the sum
    for (const std::string& axis : held.partial_axes) {
      if (mesh_.size(axis) > 1) axes.push_back(axis);
    }
    const Observation observation{.kind = kind,
                                  .name = name,
                                  .phase = phase,
                                  .step = 1,
                                  .tensor = tensor,
                                  .layout = held.layout,
                                  .part = axes.empty() ? Part::kFull : Part::kPartial,
                                  .partial_axes = axes};
    if (!env_.on_tensor || env_.on_tensor(observation)) recorder_->observe(observation);
  }

  // This rank's part of the gradient that enters at an output. It is undefined if the golden lacks
  // the output or has another shape, which the judge reports. Without a golden it is ones.
  at::Tensor gradient_at(const WorkloadTensor& output) const {
    const world::ClockPause pause(env_.clock);
    if (!golden_) return at::ones_like(output.tensor);
    const GoldenTensor* golden = golden_->find(Phase::kForward, 1, output.name);
    if (golden == nullptr) return {};
    const std::vector<int64_t> shape = golden->value.sizes();
    if (output.layout.local_shape(shape, mesh_, env_.rank) != output.tensor.sizes().vec()) {
      return {};
    }
    return with_strides(
        cut(gradient_at_output(spec_.seed, output.name, shape), output.layout, mesh_, env_.rank));
  }

  at::Tensor with_strides(const at::Tensor& tensor) const {
    return spec_.options.value(kStridedInputs, false) && tensor.dim() > 1
               ? transposed_memory(tensor)
               : tensor;
  }

  void go_back(const WorkloadTensors& outputs) {
    std::vector<at::Tensor> tensors, gradients;
    for (const WorkloadTensor& output : outputs) {
      tensors.push_back(output.tensor);
      gradients.push_back(gradient_at(output));
    }
    run_backward(tensors, gradients);
  }

  // The layouts of the inputs, for the report's picture.
  nlohmann::json holdings() const {
    nlohmann::json held = nlohmann::json::object();
    for (const WorkloadTensor& input : inputs_) {
      held[input.name] = {{"layout", input.layout.describe()},
                          {"global_shape", input.tensor.sizes().vec()}};
    }
    return held;
  }

  const Workload& workload_;
  const CaseSpec& spec_;
  const world::RankEnv& env_;
  Mesh mesh_;
  world::CallTrace trace_;
  MeshComm comm_;
  std::optional<GoldenRecord> golden_;
  std::optional<judge::RankRecorder> recorder_;
  WorkloadTensors inputs_;
  TensorsByName local_;
  bool returned_ = false;  // an output
};

}  // namespace

std::string run_sharded(const Workload& workload, const CaseSpec& spec, const world::RankEnv& env) {
  return judge::encode(ShardedRun(workload, spec, env).run());
}

}  // namespace shardproof::sim::proofs
