#include "golden/golden_main.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/version.h>

#include <chrono>
#include <future>
#include <nlohmann/json.hpp>

#include "base/freed_memory.h"
#include "golden/single_device.h"
#include "model/precision.h"
#include "sim/record/golden_record.h"
#include "tensor/safetensors.h"

namespace shardproof::golden {
namespace {

// What the report says beside the tensors.
std::map<std::string, std::string> metadata_of(const sim::CaseSpec& spec, const Batch& batch) {
  const at::Tensor mask = batch.loss_mask();
  return {{"workload", spec.workload},
          {"precision", spec.precision},
          {"torch", TORCH_VERSION},
          {"counted_tokens", fmt::format("{}", mask.sum().item<double>())},
          {"counted_sequences", fmt::format("{}", mask.ne(0).any(1).sum().item<int64_t>())}};
}

// Larger goldens give their memory back before the next one is asked for.
constexpr int64_t kKeptBytes = int64_t{64} << 20;

std::string run(const std::string& request, int golden_fd, const std::string& dump_path) {
  const auto start = std::chrono::steady_clock::now();
  at::set_num_threads(1);  // the same sums in every run, and no fight with the ranks for cores
  const sim::CaseSpec spec = sim::case_spec_from_json(nlohmann::json::parse(request));
  const at::ScalarType dtype = dtype_of_precision(spec.precision);
  const CaseData data = load_case_data(spec);

  const int64_t last_step = spec.workload == "train" ? spec.steps : -1;
  sim::GoldenRecorder recorder(spec.record_activations, last_step);
  sim::GoldenRecorder lower(spec.record_activations, last_step);
  std::future<void> lower_run;
  if (dtype != at::kDouble) {
    lower_run = std::async(std::launch::async, [&] {
      at::set_num_threads(1);
      run_single_device(spec, data, dtype, lower);
    });
  }
  // Overflows are float16's to find: that run comes first. All others go side by side.
  if (dtype == at::kHalf) lower_run.get();
  run_single_device(spec, data, at::kDouble, recorder);
  if (lower_run.valid()) lower_run.get();
  if (dtype != at::kDouble) recorder.measure_precision(lower);
  if (golden_fd >= 0) recorder.write(golden_fd, metadata_of(spec, data.batch));
  if (!dump_path.empty()) {
    const int64_t steps = spec.workload == "train" ? spec.steps : 0;
    write_safetensors(dump_path, spec.workload == "policy" ? recorder.moment_names()
                                                           : recorder.expected_names(steps));
  }

  int64_t bytes = 0;
  for (const sim::GoldenTensor& tensor : recorder.tensors()) {
    bytes += static_cast<int64_t>(tensor.value.nbytes());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return nlohmann::json{
      {"seconds", seconds.count()}, {"tensors", recorder.tensors().size()}, {"bytes", bytes}}
      .dump();
}

}  // namespace

std::string golden_main(const std::string& request, int golden_fd, const std::string& dump_path) {
  keep_freed_memory();
  std::string result = run(request, golden_fd, dump_path);
  return_freed_memory(kKeptBytes);
  return result;
}

}  // namespace shardproof::golden
