// Runs one case on a single device, in its own process.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>

#include "base/freed_memory.h"
#include "base/mutex.h"
#include "golden/single_device.h"
#include "model/precision.h"
#include "sim/case/record/golden_record.h"
#include "sim/case/record/magnitude.h"
#include "sim/case/record/sampled_rows.h"
#include "sim/case/recorder/golden_recorder.h"
#include "sim/case/recorder/rounding_noise.h"
#include "sim/case/runners.h"
#include "tensor/counting_allocator.h"
#include "tensor/safetensors.h"

namespace shardproof::golden {
namespace {

// Tokens that the loss counts. Where nothing trains, those with a token before them; none where no
// stage of a policy scores to its end.
std::optional<int64_t> scored_tokens(const sim::CaseSpec& spec, const Batch& batch) {
  const auto has = [&spec](std::initializer_list<sim::StageKind> kinds) {
    return std::ranges::any_of(spec.stages, [kinds](const sim::StageSpec& stage) {
      return !stage.fails && std::ranges::find(kinds, stage.kind) != kinds.end();
    });
  };
  if (spec.is(sim::ModelWorkload::kTrain) || has({sim::StageKind::kTrain})) {
    return batch.loss_mask().ne(0).sum().item<int64_t>();
  }
  const bool scores = spec.is(sim::ModelWorkload::kLogprobs) ||
                      has({sim::StageKind::kScore, sim::StageKind::kReference});
  if (!scores) return std::nullopt;
  return (batch.input_lengths - 1).sum().item<int64_t>();
}

// The data of the report besides the tensors.
std::map<std::string, std::string> metadata_of(const sim::CaseSpec& spec, const Batch& batch) {
  std::map<std::string, std::string> metadata = {{"workload", spec.workload},
                                                 {"precision", name_of(spec.precision)},
                                                 {"torch", TORCH_VERSION}};
  if (const std::optional<int64_t> scored = scored_tokens(spec, batch)) {
    metadata[sim::kScoredTokens] = fmt::format("{}", *scored);
  }
  return metadata;
}

constexpr int64_t kFirstMembers = 4;  // of kPerturbed: they show how far logprobs scatter

int64_t last_step_of(const sim::CaseSpec& spec) {
  return spec.is(sim::ModelWorkload::kTrain) ? spec.steps : -1;
}

// The rows that the case samples. Scoring computes each sample alone, so that the samples which are
// not drawn need not be run: they leave `batch`.
sim::KeptRows rows_of(const sim::CaseSpec& spec, Batch& batch) {
  sim::KeptRows rows{.count = spec.sample_rows, .seed = spec.seed};
  if (!spec.is(sim::ModelWorkload::kLogprobs)) return rows;
  rows.samples = sim::drawn_samples(batch.size(), spec.sample_rows, spec.seed);
  rows.all_samples = batch.size();
  if (!rows.samples.empty()) batch = batch.select(rows.samples);
  return rows;
}

constexpr int64_t kBesideBytes = int64_t{128} << 20;

// Whether runs of these weights may go side by side. Each takes memory, so large ones take turns.
bool fit_beside(const WeightMap& weights) {
  int64_t bytes = 0;
  for (const auto& [name, weight] : weights) bytes += static_cast<int64_t>(weight.nbytes());
  return bytes <= kBesideBytes;
}

// Calls `one` and `other` on two threads. Their sums are those of one thread each.
template <class One, class Other>
void run_both(const One& one, const Other& other) {
  std::future<void> beside = std::async(std::launch::async, [&other] {
    at::set_num_threads(1);
    other();
  });
  one();
  beside.get();
}

// Runs members `first` to `last`, two at a time where they fit, and adds each to the scatter of
// `recorder`.
void run_members(int64_t first, int64_t last, const sim::CaseSpec& spec, const CaseData& data,
                 at::ScalarType dtype, const Perturbation::Errors& errors,
                 const sim::KeptRows& rows, RouteChoices* routes, sim::GoldenRecorder& recorder) {
  Mutex one_at_a_time;
  std::atomic<int64_t> next = first;
  const auto run_some = [&] {
    for (int64_t member = next++; member <= last; member = next++) {
      const Perturbation perturbation(member, spec.seed, errors, sim::roundings_of_member(dtype));
      sim::GoldenRecorder recorded(spec.record_activations, last_step_of(spec), rows);
      run_single_device(
          spec, data, {.dtype = dtype, .perturbation = &perturbation, .routes = routes}, recorded);
      const Lock lock(one_at_a_time);
      recorder.add_member(recorded);
    }
  };
  if (fit_beside(*data.weights)) {
    run_both(run_some, run_some);
  } else {
    run_some();
  }
}

// Runs in float64 into `recorder`, then adds the scatter of the members. Returns the steps that
// sums of parts skip otherwise.
std::vector<int64_t> run_ensemble(const sim::CaseSpec& spec, const CaseData& data,
                                  at::ScalarType dtype, const sim::KeptRows& rows, bool few,
                                  sim::GoldenRecorder& recorder) {
  RouteChoices choices;
  RouteChoices* const routes = data.config.has_experts() ? &choices : nullptr;
  RunOptions plain{.dtype = dtype, .routes = routes};
  if (routes != nullptr) {
    NoProbe nobody;
    run_single_device(spec, data, {.dtype = at::kDouble, .overflows = nullptr, .routes = routes},
                      nobody);
    choices.fix();
  }
  if (dtype == at::kHalf) plain.parted_skips = std::make_shared<std::vector<int64_t>>();
  sim::GoldenRecorder rounded(spec.record_activations, last_step_of(spec), rows);
  const auto run_rounded = [&] { run_single_device(spec, data, plain, rounded); };
  const auto run_exact = [&] {
    run_single_device(spec, data,
                      {.dtype = at::kDouble, .overflows = plain.overflows, .routes = routes},
                      recorder);
  };
  if (dtype != at::kHalf && fit_beside(*data.weights)) {
    run_both(run_exact, run_rounded);
  } else {
    run_rounded();  // in float16 first, as the exact run skips the steps that overflowed
    run_exact();
  }
  recorder.add_member(rounded);
  Perturbation::Errors errors = recorder.scatter();
  // In their order, because the first ones decide on their own.
  run_members(1, sim::kFewMembers - 1, spec, data, dtype, errors, rows, routes, recorder);
  if (few) return plain.parted_skips ? *plain.parted_skips : std::vector<int64_t>();
  run_members(sim::kFewMembers, kFirstMembers, spec, data, dtype, errors, rows, routes, recorder);
  // The distance of logprobs decides which tokens are near a clip edge. One run is a poor estimate.
  for (auto& [key, error] : errors) {
    if (key.ends_with(" logprobs")) error = recorder.scatter().at(key);
  }
  run_members(kFirstMembers + 1, sim::kPerturbed, spec, data, dtype, errors, rows, routes,
              recorder);
  return plain.parted_skips ? *plain.parted_skips : std::vector<int64_t>();
}

// Runs in float64 into `recorder`, then adds the scatter of members in float64: how far this case
// carries a rounding.
void run_measured(const sim::CaseSpec& spec, const CaseData& data, const sim::KeptRows& rows,
                  sim::GoldenRecorder& recorder) {
  run_single_device(spec, data, {.dtype = at::kDouble}, recorder);
  run_members(1, kFirstMembers, spec, data, at::kDouble, {}, rows, nullptr, recorder);
  run_members(kFirstMembers + 1, sim::kPerturbed, spec, data, at::kDouble, recorder.scatter(), rows,
              nullptr, recorder);
}

// Larger goldens return their memory before the next request.
constexpr int64_t kKeptBytes = int64_t{64} << 20;

GoldenSize run(const sim::CaseSpec& spec, Members members, int golden_fd,
               const std::string& dump_path) {
  const auto start = std::chrono::steady_clock::now();
  use_counting_allocator();
  at::set_num_threads(1);  // the same sums in every run, and cores for the ranks
  const at::ScalarType dtype = dtype_of_precision(name_of(spec.precision));
  CaseData data = load_case_data(spec);
  // A dump has whole tensors.
  const sim::KeptRows rows = dump_path.empty() ? rows_of(spec, data.batch) : sim::KeptRows{};
  std::map<std::string, std::string> metadata = metadata_of(spec, data.batch);

  sim::GoldenRecorder recorder(spec.record_activations, last_step_of(spec), rows);
  std::vector<int64_t> parted;
  if (dtype == at::kDouble && members == Members::kMeasured) {
    run_measured(spec, data, rows, recorder);
  } else if (dtype == at::kDouble) {
    run_single_device(spec, data, {.dtype = at::kDouble}, recorder);
  } else {
    parted = run_ensemble(spec, data, dtype, rows, members == Members::kFew, recorder);
  }
  if (golden_fd >= 0) {
    if (!parted.empty()) metadata[sim::kPartedSkips] = fmt::format("{}", fmt::join(parted, " "));
    recorder.write(golden_fd, metadata);
  }
  if (!dump_path.empty()) {
    const int64_t steps = spec.is(sim::ModelWorkload::kTrain) ? spec.steps : 0;
    write_safetensors(dump_path,
                      spec.is(sim::ModelWorkload::kPolicy) ? recorder.moment_names()
                                                           : recorder.expected_names(steps),
                      {{"writer", "shardproof"}});
  }

  int64_t bytes = 0;
  for (const sim::KeptTensor& tensor : recorder.tensors()) {
    bytes += static_cast<int64_t>(tensor.value.nbytes());
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return {seconds.count(), std::ssize(recorder.tensors()), bytes};
}

}  // namespace

GoldenSize golden_main(const sim::CaseSpec& spec, Members members, int golden_fd,
                       const std::string& dump_path) {
  keep_freed_memory();
  const GoldenSize result = run(spec, members, golden_fd, dump_path);
  return_freed_memory(kKeptBytes);
  return result;
}

}  // namespace shardproof::golden
