#include "sim/uses/explore/case_work.h"

#include <algorithm>

#include "sim/case/names.h"
#include "sim/case/reference.h"
#include "sim/uses/explore/fit.h"

namespace shardproof::sim::explore {

namespace {

// Bounds of a case, so that thousands run in an hour: multiplications of its model, and layers that
// its ranks compute, over all steps and microbatches.
// Below float64 a golden runs many times; a reference does on all of its ranks.
constexpr double kMostWork = 2e9, kMostLowWork = 3e8, kMostLayers = 160, kMostReferenceLayers = 120;

constexpr int64_t kReferenceRuns = 17;  // below float64: sim/run/reference_run.cpp

// Layers that the ranks of the reference compute.
double reference_layers(const CaseSpec& spec) {
  if (!spec.reference.is_set()) return 0;
  const int64_t ranks = reference_layout(spec.reference).world_size();
  const bool exact = spec.precision == Precision::kFloat64;
  return static_cast<double>(ranks * spec.steps * (exact ? 1 : kReferenceRuns)) *
         spec.model.value("num_hidden_layers", 1.0);
}

}  // namespace

bool is_small(const CaseSpec& spec) {
  if (spec.parallel.world_size() > kMostDrawnRanks) return false;
  if (!is_model_workload(spec.workload)) return true;
  const auto size = [&](const char* name) { return spec.model.value(name, 1.0); };
  const auto samples = static_cast<double>(spec.data.batch_size);
  const double layer = size("hidden_size") * (3 * size("intermediate_size") +
                                              4 * size("num_attention_heads") * size("head_dim"));
  const auto passes = static_cast<double>(
      std::max(spec.steps, spec.lives * static_cast<int64_t>(spec.stages.size())));
  const double work =
      3 * samples * static_cast<double>(spec.data.seq_len) * passes *
      (size("num_hidden_layers") * layer + size("hidden_size") * size("vocab_size"));
  const int64_t shares = spec.parallel.ranks(Share::kSamples);
  const double rows =
      spec.micro_batch_size > 0 ? samples / static_cast<double>(spec.micro_batch_size * shares) : 1;
  const double layers = static_cast<double>(spec.parallel.world_size()) * passes *
                        std::max(1.0, rows) * size("num_hidden_layers");
  const bool exact = spec.precision == Precision::kFloat64;
  return work <= (exact ? kMostWork : kMostLowWork) && layers <= kMostLayers &&
         reference_layers(spec) <= kMostReferenceLayers;
}

}  // namespace shardproof::sim::explore
