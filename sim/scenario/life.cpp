#include "sim/scenario/life.h"

#include <fmt/format.h>

namespace shardproof::sim {
namespace {

// The stage of a moment; as many as there are: none.
size_t stage_at(const CaseSpec& spec, int64_t step) {
  int64_t left = step - life_begin(spec, step) + 1;
  for (size_t i = 0; i < spec.stages.size(); ++i) {
    left -= moments_of(spec.stages[i], spec.data.batch_size);
    if (left <= 0) return i;
  }
  return spec.stages.size();
}

}  // namespace

int64_t moments_of(const StageSpec& stage, int64_t samples) {
  if (stage.kind == "train") return samples / stage.global_batch_size;
  return stage.kind == "offload" || stage.kind == "save" ? 0 : 1;
}

int64_t moments_of_life(const CaseSpec& spec) {
  int64_t moments = 0;
  for (const StageSpec& stage : spec.stages) moments += moments_of(stage, spec.data.batch_size);
  return moments;
}

int64_t life_begin(const CaseSpec& spec, int64_t step) {
  const int64_t moments = moments_of_life(spec);
  if (moments == 0 || step < 1) return 1;
  return (step - 1) / moments * moments + 1;
}

const ParallelSpec& parallel_at(const CaseSpec& spec, int64_t step) {
  const size_t stage = stage_at(spec, step);
  return stage < spec.stages.size() ? spec.stages[stage].parallel : spec.parallel;
}

std::string stage_text(const CaseSpec& spec, int64_t step) {
  const size_t stage = stage_at(spec, step);
  if (stage >= spec.stages.size()) return "";
  const std::string text = fmt::format("stage {} ({})", stage + 1, spec.stages[stage].kind);
  if (spec.lives == 1) return text;
  const int64_t life = (step - 1) / moments_of_life(spec) + 1;
  return text + fmt::format(", life {} of {}", life, spec.lives);
}

}  // namespace shardproof::sim
