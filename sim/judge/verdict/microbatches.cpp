#include "sim/judge/verdict/microbatches.h"

#include <algorithm>
#include <set>
#include <utility>

namespace shardproof::sim::judge {

std::vector<MicrobatchGolden> microbatches_to_try(const CaseResult& result) {
  constexpr size_t kMost = 16;  // goldens, each of which takes as long as that of the case
  const CaseSpec& spec = result.spec;
  const bool trains = spec.is(ModelWorkload::kTrain) && spec.precision == Precision::kFloat64;
  if (!trains || spec.reference.is_set() || spec.sample_rows > 0 || !spec.data.file.empty()) {
    return {};
  }
  if (result.verdict != Verdict::kMismatch || result.kind != ResultKind::kValues) return {};
  if (!result.divergence || !result.divergence->likely.empty()) return {};
  const ResultRow& first = result.divergence->worst;
  if (first.kind != ObservationKind::kGradient || first.step != 1 || !first.problem.empty()) {
    return {};
  }
  std::set<std::pair<int64_t, std::vector<int64_t>>> all;
  for (const RankReport& report : result.reports) {
    for (size_t i = 0; i < report.microbatch_samples.size(); ++i) {
      if (report.microbatch_samples[i].empty()) continue;  // of dummies
      all.emplace(static_cast<int64_t>(i), report.microbatch_samples[i]);
    }
  }
  if (all.size() < 2 || all.size() > kMost) return {};
  std::vector<MicrobatchGolden> microbatches;
  for (const auto& [microbatch, samples] : all) microbatches.push_back({microbatch, samples});
  return microbatches;
}

CaseSpec case_of_samples(const CaseSpec& spec, const std::vector<int64_t>& samples) {
  CaseSpec one = spec;
  one.steps = 1;
  one.record_activations = false;
  for (int64_t sample = 0; sample < one.data.batch_size; ++sample) {
    if (std::find(samples.begin(), samples.end(), sample) != samples.end()) continue;
    auto& dropped = one.data.dropped_samples;
    if (std::find(dropped.begin(), dropped.end(), sample) == dropped.end()) {
      dropped.push_back(sample);
    }
  }
  return one;
}

std::vector<MicrobatchGradient> microbatch_gradients(
    const std::vector<MicrobatchGolden>& microbatches, const std::vector<const ResultRow*>& rows) {
  const auto wrong =
      std::find_if(rows.begin(), rows.end(), [](const ResultRow* row) { return row->is_wrong(); });
  if (wrong == rows.end()) return {};
  const ResultRow& row = **wrong;
  std::vector<MicrobatchGradient> found;
  if (row.kind != ObservationKind::kGradient || row.step != 1) return found;
  for (const MicrobatchGolden& one : microbatches) {
    const GoldenTensor* tensor = one.golden->find(row.phase, row.step, row.name);
    if (tensor == nullptr || tensor->value.sizes() != row.global_shape) return {};
    found.push_back({one.microbatch, one.samples, tensor->value.data<double>()});
  }
  return found;
}

}  // namespace shardproof::sim::judge
