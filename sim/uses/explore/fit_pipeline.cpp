// Of a case in stages: the schedule, its chunks, the layers, the microbatches and what runs beside
// stages fit each other.
#include <algorithm>
#include <numeric>
#include <sstream>

#include "base/pipeline_schedules.h"
#include "base/stage_layout.h"
#include "sim/case/names.h"
#include "sim/uses/explore/fitted_settings.h"

namespace shardproof::sim::explore {

using nlohmann::json;

namespace {

constexpr const char *kRefPp = "reference.mesh.pp", *kSchedule = "parallel.pp.schedule",
                     *kChunks = "parallel.pp.chunks", *kGroup = "parallel.pp.group",
                     *kFirst = "parallel.pp.first_layers", *kLast = "parallel.pp.last_layers",
                     *kLayout = "parallel.pp.layout", *kMicro = "run.train_micro_batch_size",
                     *kDeferred = "parallel.tp.deferred_wgrad",
                     *kHeads = "model.num_nextn_predict_layers";
constexpr const char* kCounts[] = {"parallel.pp.count_embedding", "parallel.pp.count_head"};
constexpr int64_t kMostStages = 4;

int64_t layers_in(const std::string& layout) {
  int64_t layers = 0;
  for (const std::string& stage : read_layout(layout)) layers += std::ranges::count(stage, 't');
  return layers;
}

class PipelineFit : private FittedSettings {
 public:
  using FittedSettings::FittedSettings;
  using FittedSettings::in_stages;

  void fit() {
    excluded();
    schedule();
    if (in_stages()) layout();
    if (in_stages() && !has(kLayout)) layers();
    microbatches();
    reference();
  }
  bool has_reference() const { return size(kRefPp, 1) > 1; }

 private:
  // Calls `change` with each number of stage ranks above 1 that is not fixed; a load may have 0.
  template <class Change>
  void each_size(const Change& change) {
    for (const char* path : {kPp, kRefPp}) {
      if (size(path, 1) > 1 && !is_fixed(path)) settings_[path] = change(size(path, 1));
    }
    if (!has(kStageList)) return;
    for (json& stage : settings_[kStageList]) {
      if (!stage.contains(kStagePp) || stage[kStagePp] <= 1) continue;
      stage[kStagePp] = change(stage[kStagePp].get<int64_t>());
    }
  }
  int64_t most_ranks() const {
    const std::vector<int64_t> all = stage_ranks();
    return all.empty() ? 1 : *std::ranges::max_element(all);
  }

  // What is refused in stages.
  void excluded() {
    std::vector<const char*> given;
    if (setting_of(settings_, "run.scoring.fused_norm") == true) {
      given.push_back("run.scoring.fused_norm");
    }
    if (setting_of(settings_, "model.init") == name_of(WeightInit::kOwnStream)) {
      given.push_back("model.init");
    }
    for (const char* path : given) {
      if (is_fixed(path)) each_size([](int64_t) { return int64_t{1}; });
    }
    if (!in_stages() && !has_reference()) return;
    for (const char* path : given) drop(path);
    each_size([](int64_t ranks) { return std::min(ranks, kMostStages); });
    if (!has(kStageList)) return;
    for (json& stage : settings_[kStageList]) {
      stage.erase("fails");
      stage.erase("interrupted_after");
    }
  }

  const ScheduleTraits& traits() const {
    const json given = setting_of(settings_, kSchedule);
    return traits_of(find_enum<PipelineSchedule>(given.get<std::string>()).value());
  }
  // Whether the schedule takes some numbers of microbatches alone.
  bool is_choosy() const { return traits().groups || traits().microbatches_of_rank > 0; }

  void schedule() {
    using enum PipelineSchedule;
    const auto choose = [this](PipelineSchedule schedule) {
      if (!is_fixed(kSchedule)) settings_[kSchedule] = name_of(schedule);
    };
    const bool policy = setting_of(settings_, "workload") == name_of(ModelWorkload::kPolicy);
    // Dummies fill microbatches up in packed rows alone.
    if (policy && is_choosy()) choose(size(kChunks, 1) > 1 ? kBreadthFirst : k1F1B);
    if (has(kDeferred) && traits().splits_backward) {
      if (is_fixed(kDeferred)) choose(size(kChunks, 1) > 1 ? kBreadthFirst : k1F1B);
      drop(kDeferred);
    }
    const int64_t chunks = size(kChunks, 1);
    if (is_fixed(kChunks) &&
        std::clamp(chunks, traits().least_chunks, traits().most_chunks) != chunks) {
      choose(kBreadthFirst);
    }
    const int64_t least = traits().least_chunks;
    const int64_t wanted = std::clamp(chunks, least, std::min(traits().most_chunks, least + 1));
    if (chunks != wanted) set(kChunks, wanted);
    if (size(kGroup, 0) > 0) set(kGroup, std::clamp<int64_t>(size(kGroup, 0), most_ranks(), 5));
  }

  // One for the stages of the case, as even as the given one.
  void layout() {
    const auto all = stage_ranks();
    const bool several = size(kRefPp, 1) > 1 || std::ranges::any_of(all, [&](int64_t ranks) {
                           return ranks != all.front();
                         });
    const bool others =
        is_fixed(kFirst) || is_fixed(kLast) || is_fixed(kCounts[0]) || is_fixed(kCounts[1]);
    if (several || others) drop(kLayout);
    if (!has(kLayout)) return;
    for (const char* path : {kFirst, kLast, kCounts[0], kCounts[1]}) drop(path);
    const int64_t stages = all.front() * size(kChunks, 1);
    const bool in_files = has("model.folder") || has("data.case");
    int64_t layers = in_files ? layers_in(settings_[kLayout]) : size(kLayers, 2);
    const bool empty = has_stage_without_layers(settings_[kLayout]) ||
                       ((is_fixed(kLayers) || in_files) && layers < stages);
    if (!empty && layers < stages) set(kLayers, layers = stages);
    // The first stage has most layers; or none, and then the last one has them.
    const int64_t each = empty ? 0 : 1, rest = layers - each * stages;
    std::string text = "E" + std::string(static_cast<size_t>(empty ? 0 : 1 + rest), 't');
    for (int64_t stage = 1; stage < stages; ++stage) {
      const bool takes_rest = empty && stage == stages - 1;
      text += "|" + std::string(static_cast<size_t>(each + (takes_rest ? rest : 0)), 't');
    }
    const std::optional<int64_t> heads = family().extra_heads;
    text += std::string(heads ? static_cast<size_t>(size(kHeads, *heads)) : 0, 'm');
    settings_[kLayout] = text + "L";
  }

  // Layers that all splits of the case take.
  void layers() {
    const std::vector<int64_t> all = stage_ranks();
    const int64_t chunks = size(kChunks, 1);
    const bool counts = std::ranges::any_of(
        kCounts, [&](const char* path) { return setting_of(settings_, path) == true; });
    const bool several =
        !std::ranges::all_of(all, [&](int64_t ranks) { return ranks == all.front(); });
    const bool fixed_counts =
        std::ranges::any_of(kCounts, [&](const char* path) { return is_fixed(path); });
    const bool ends = has(kFirst) || has(kLast);
    const bool drops_ends = several || is_fixed(kLayers) || (counts && ends && fixed_counts);
    const bool drops_counts = several || is_fixed(kLayers) || (counts && ends && !drops_ends);
    for (const char* path : {kFirst, kLast}) {
      if (drops_ends) drop(path);
      if (size(path, 0) % chunks != 0) set(path, multiple(size(path, 0), chunks));
      if (size(path, 0) > kMostStages) set(path, chunks);
    }
    if (drops_counts) {
      for (const char* path : kCounts) drop(path);
    }
    if (is_fixed(kLayers)) {
      each_size([&](int64_t ranks) {
        while (size(kLayers, 2) % (ranks * chunks) != 0 && ranks > 1) --ranks;
        return ranks;
      });
      return;
    }
    int64_t stages = is_fixed(kRefPp) ? size(kRefPp, 1) : 1;
    for (const int64_t ranks : all) stages = std::lcm(stages, ranks * chunks);
    const int64_t first = size(kFirst, 0), last = size(kLast, 0), ranks = all.front();
    if (first + last > 0) {
      set(kLayers, first + last + (ranks - (first > 0) - (last > 0)) * chunks);
      return;
    }
    int64_t counted = 0;
    for (const char* path : kCounts) counted += setting_of(settings_, path) == true ? 1 : 0;
    set(kLayers, multiple(std::max<int64_t>(size(kLayers, 2), 1 + counted), stages) - counted);
  }

  // It has the default split.
  void reference() {
    if (!is_fixed(kLayers) && is_fixed(kRefPp) && !in_stages()) {
      set(kLayers, multiple(size(kLayers, 2), size(kRefPp, 1)));
    }
    while (size(kRefPp, 1) > 1 && !is_fixed(kRefPp) && size(kLayers, 2) % size(kRefPp, 1) != 0) {
      set(kRefPp, size(kRefPp, 1) - 1);
    }
  }

  // As many as every schedule takes: whole groups, and two for each rank.
  void microbatches() {
    if (!in_stages() || !is_choosy()) return;
    if (setting_of(settings_, "run.sequence_packing.enabled") == true ||
        setting_of(settings_, "run.dynamic_batching.enabled") == true) {
      return;
    }
    if (setting_of(settings_, "workload") != name_of(ModelWorkload::kTrain)) return;
    const bool pairs = setting_of(settings_, "run.loss.kind") == name_of(LossKind::kPreference);
    const int64_t micro = pairs ? 2 : 1;
    for (const char* path : {"data.lengths", "data.uneven", "run.train_global_batch_size"}) {
      drop(path);
    }
    set(kMicro, micro);
    const int64_t group = std::max(size(kGroup, 0), most_ranks());
    set("data.batch_size",
        mesh_sizes().ranks(Share::kSamples) * micro * std::lcm(group, 2 * most_ranks()));
  }
};

}  // namespace

bool has_stage_without_layers(const std::string& layout) {
  std::istringstream stages(layout);
  for (std::string stage; std::getline(stages, stage, '|');) {
    if (stage.find('t') == stage.npos) return true;
  }
  return false;
}

void fit_pipeline(CaseSettings& settings, const std::set<std::string>& fixed) {
  PipelineFit fit(settings, fixed);
  if (fit.in_stages() || fit.has_reference()) fit.fit();
}

void fit_failures(json& stage, int64_t batches) {
  if (stage.value("eval_mode", false)) stage.erase("fails");
  const bool fails = stage.value("fails", false);
  const bool trains_on = !fails && !stage.value("eval_mode", false);
  if (!trains_on || stage.value("interrupted_after", int64_t{0}) >= batches) {
    stage.erase("interrupted_after");
  }
  if (!fails) return;
  for (const TrainingAxis& axis : kTrainingAxes) stage.erase(axis.key);
  stage.erase("sequence_parallel");
  stage.erase("data_parallel");
}

}  // namespace shardproof::sim::explore
