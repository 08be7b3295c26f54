// The plain function of a workload on one device: the golden of its cases.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <chrono>

#include "base/error.h"
#include "model/precision.h"
#include "sim/record/golden_record.h"
#include "sim/workload/passes.h"
#include "sim/workload/run_workload.h"
#include "tensor/safetensors.h"

namespace shardproof::sim {
namespace {

void run_in(at::ScalarType dtype, const Workload& workload, const CaseSpec& spec, Probe& probe) {
  Draw draw(spec.seed);
  TensorsByName leaves;
  const WorkloadTensors inputs = workload.inputs(draw, spec.options);
  for (const WorkloadTensor& input : inputs) {
    leaves[input.name] = leaf_of(input.tensor, dtype, at::kCPU);
  }
  std::vector<at::Tensor> outputs, gradients;
  for (const WorkloadTensor& output : workload.plain(leaves, spec.options)) {
    probe.observe({.name = output.name, .step = 1, .tensor = output.tensor.detach()});
    outputs.push_back(output.tensor);
    gradients.push_back(gradient_at_output(spec.seed, output.name, output.tensor.sizes().vec()));
  }
  run_backward(outputs, gradients);
  for (auto input = inputs.rbegin(); input != inputs.rend(); ++input) {
    const at::Tensor gradient = gradient_of_leaf(leaves.at(input->name));
    if (!gradient.defined()) continue;
    probe.observe(
        {.name = "grad." + input->name, .phase = Phase::kStep, .step = 1, .tensor = gradient});
  }
}

}  // namespace

std::string run_plain(const Workload& workload, const CaseSpec& spec, int golden_fd,
                      const std::string& dump_path) {
  const auto start = std::chrono::steady_clock::now();
  at::set_num_threads(1);  // the same sums in every run, and no fight with the ranks for cores
  const at::ScalarType dtype = dtype_of_precision(spec.precision);
  GoldenRecorder recorder(/*activations=*/true);
  run_in(at::kDouble, workload, spec, recorder);
  if (dtype != at::kDouble) {
    GoldenRecorder lower(/*activations=*/true);
    run_in(dtype, workload, spec, lower);
    recorder.measure_precision(lower);
  }
  if (golden_fd >= 0) {
    recorder.write(golden_fd, {{"workload", spec.workload}, {"precision", spec.precision}});
  }
  NamedTensors tensors;
  int64_t bytes = 0;
  for (const GoldenTensor& tensor : recorder.tensors()) {
    tensors.emplace_back(tensor.name, tensor.value);
    bytes += static_cast<int64_t>(tensor.value.nbytes());
  }
  if (!dump_path.empty()) write_safetensors(dump_path, tensors);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return nlohmann::json{{"seconds", seconds.count()}, {"tensors", tensors.size()}, {"bytes", bytes}}
      .dump();
}

}  // namespace shardproof::sim
