// Runs the plain function of a workload on one device: the golden of its cases.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "model/precision.h"
#include "sim/case/record/magnitude.h"
#include "sim/case/recorder/golden_recorder.h"
#include "sim/case/recorder/rounding_noise.h"
#include "sim/uses/proofs/passes.h"
#include "sim/uses/proofs/run_workload.h"
#include "tensor/safetensors.h"

namespace shardproof::sim::proofs {
namespace {

// Member 0 is exact; the outputs and gradients of other members are moved by roundings. In float32
// their inputs are moved too, because a function may amplify the roundings inside it, as a
// softmax's exponent does (backward error). In a narrower dtype the roundings inside are float32
// and smaller than those of the outputs, unless the workload says otherwise.
void run_in(at::ScalarType dtype, int64_t member, const Workload& workload, const CaseSpec& spec,
            Probe& probe) {
  const auto moved = [&](const at::Tensor& value, const std::string& name) {
    if (member == 0 || !value.is_floating_point()) return value;
    return moved_by_rounding(value, spec.seed, fmt::format("member {} {}", member, name));
  };
  Draw draw(spec.seed);
  TensorsByName leaves;
  const WorkloadTensors inputs = workload.inputs(draw, spec.options);
  for (const WorkloadTensor& input : inputs) {
    const bool moves =
        (dtype == at::kFloat || workload.rounds_inside) && input.tensor.is_floating_point();
    leaves[input.name] =
        leaf_of(moves ? moved(input.tensor.to(dtype), "input " + input.name) : input.tensor, dtype,
                at::kCPU);
  }
  std::vector<at::Tensor> outputs, gradients;
  for (const WorkloadTensor& output : workload.plain(leaves, spec.options)) {
    outputs.push_back(moved(output.tensor, output.name));
    probe.observe({.kind = kind_of_name(Phase::kForward, output.name),
                   .name = output.name,
                   .step = 1,
                   .tensor = outputs.back().detach()});
    gradients.push_back(gradient_at_output(spec.seed, output.name, output.tensor.sizes().vec()));
  }
  run_backward(outputs, gradients);
  for (auto input = inputs.rbegin(); input != inputs.rend(); ++input) {
    const at::Tensor raw = gradient_of_leaf(leaves.at(input->name));
    if (!raw.defined()) continue;
    const at::Tensor gradient = moved(raw, "grad." + input->name);
    probe.observe({.kind = ObservationKind::kGradient,
                   .name = observed_name(ObservationKind::kGradient, input->name),
                   .phase = Phase::kStep,
                   .step = 1,
                   .tensor = gradient});
  }
}

}  // namespace

golden::GoldenSize run_plain(const Workload& workload, const CaseSpec& spec, int golden_fd,
                             const std::string& dump_path) {
  const auto start = std::chrono::steady_clock::now();
  at::set_num_threads(1);  // equal sums in every run, and cores are left for the ranks
  const at::ScalarType dtype = dtype_of_precision(name_of(spec.precision));
  GoldenRecorder recorder(/*activations=*/true);
  run_in(at::kDouble, /*member=*/0, workload, spec, recorder);
  for (int64_t member = 0; dtype != at::kDouble && member <= kPerturbed; ++member) {
    GoldenRecorder recorded(/*activations=*/true);
    run_in(dtype, member, workload, spec, recorded);
    recorder.add_member(recorded);
  }
  if (golden_fd >= 0) {
    recorder.write(golden_fd,
                   {{"workload", spec.workload}, {"precision", name_of(spec.precision)}});
  }
  NamedTensors tensors;
  int64_t bytes = 0;
  for (const KeptTensor& tensor : recorder.tensors()) {
    tensors.emplace_back(tensor.name, tensor.value);
    bytes += static_cast<int64_t>(tensor.value.nbytes());
  }
  if (!dump_path.empty()) write_safetensors(dump_path, tensors, {{"writer", "shardproof"}});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {seconds.count(), std::ssize(tensors), bytes};
}

}  // namespace shardproof::sim::proofs
