#include "sim/case/policy_stages.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardproof::sim {
namespace {

// The index of the stage that `step` is in; the number of stages when there is none.
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
  if (stage.fails) return 0;
  if (stage.kind == StageKind::kTrain) return samples / stage.global_batch_size;
  return stage.kind == StageKind::kOffload || stage.kind == StageKind::kSave ? 0 : 1;
}

int64_t moments_of_life(const CaseSpec& spec) {
  int64_t moments = 0;
  for (const StageSpec& stage : spec.stages) moments += moments_of(stage, spec.data.batch_size);
  return moments;
}

bool draws_numbers(const CaseSpec& spec) {
  return std::any_of(spec.stages.begin(), spec.stages.end(),
                     [](const StageSpec& stage) { return stage.kind == StageKind::kDraw; });
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

int64_t samples_at(const CaseSpec& spec, int64_t step, int64_t samples) {
  const size_t stage = stage_at(spec, step);
  const bool trains = stage < spec.stages.size() && spec.stages[stage].kind == StageKind::kTrain;
  return trains ? spec.stages[stage].global_batch_size : samples;
}

std::vector<int64_t> steps_behind(const CaseSpec& spec, int64_t step) {
  std::vector<int64_t> behind, saved;
  for (int64_t k = 1; spec.stages.empty() && k <= step; ++k) behind.push_back(k);
  int64_t moment = life_begin(spec, step);
  for (const StageSpec& stage : spec.stages) {
    if (moment > step) break;
    if (stage.fails) continue;
    if (stage.kind == StageKind::kSave) saved = behind;
    if (stage.kind == StageKind::kLoad) behind = saved;
    const int64_t end = moment + moments_of(stage, spec.data.batch_size);
    for (; moment < end; ++moment) {
      if (stage.kind == StageKind::kTrain && !stage.eval_mode && moment <= step)
        behind.push_back(moment);
    }
  }
  return behind;
}

std::string stage_text(const CaseSpec& spec, int64_t step) {
  const size_t stage = stage_at(spec, step);
  if (stage >= spec.stages.size()) return "";
  std::string text = fmt::format("stage {} ({})", stage + 1, spec.stages[stage].kind);
  if (spec.lives == 1) return text;
  const int64_t life = (step - 1) / moments_of_life(spec) + 1;
  return text + fmt::format(", life {} of {}", life, spec.lives);
}

}  // namespace shardproof::sim
