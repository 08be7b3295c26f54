// The settings of a drawn case, of which some stay as they are while the others are fitted to them.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "base/families.h"
#include "sim/case/scenario/known_workload.h"
#include "sim/uses/explore/effects.h"
#include "sim/uses/explore/scenario_text.h"

namespace shardproof::sim::explore {

inline constexpr const char* kDp = "parallel.data_parallel_size";
inline constexpr const char* kCp = "parallel.context_parallel_size";
inline constexpr const char* kUlysses = "parallel.ulysses_size";
inline constexpr const char* kTp = "parallel.tensor_parallel_size";
inline constexpr const char* kPp = "parallel.pipeline_parallel_size";
inline constexpr const char* kStagePp = "pipeline_parallel_size";  // of a stage
inline constexpr const char* kStageList = "run.stages";
inline constexpr const char* kLayers = "model.num_hidden_layers";

inline std::string path_of_size(const TrainingAxis& axis) {
  return std::string("parallel.") + axis.key;
}

// Rounded up.
inline int64_t multiple(int64_t size, int64_t of) { return (size + of - 1) / of * of; }

class FittedSettings {
 public:
  FittedSettings(CaseSettings& settings, const std::set<std::string>& fixed)
      : settings_(settings), fixed_(fixed) {}

 protected:
  bool is_fixed(const std::string& path) const { return fixed_.count(path) != 0; }
  bool has(const std::string& path) const {
    return settings_.contains(path) && !settings_[path].is_null();
  }
  int64_t size(const std::string& path, int64_t otherwise) const {
    return has(path) ? settings_[path].get<int64_t>() : otherwise;
  }
  // A name that no family has is refused with the case.
  const FamilyTraits& family() const {
    const FamilyTraits* known = find_family(setting_of(settings_, "model.family"));
    return known == nullptr ? all_families().front() : *known;
  }
  void set(const std::string& path, const nlohmann::json& value) {
    if (!is_fixed(path)) settings_[path] = value;
  }
  void drop(const std::string& path) {
    if (!is_fixed(path)) settings_.erase(path);
  }
  AxisSizes mesh_sizes() const {
    AxisSizes sizes;
    for (const auto& axis : kTrainingAxes) sizes.*axis.size = size(path_of_size(axis), 1);
    return sizes;
  }
  int64_t mesh_ranks() const { return mesh_sizes().ranks(); }
  // Each number of stage ranks above 1: the mesh's, and those that loads bring, which may be 0.
  std::vector<int64_t> stage_ranks() const {
    std::vector<int64_t> ranks = {size(kPp, 1)};
    if (has(kStageList)) {
      for (const nlohmann::json& stage : settings_[kStageList]) {
        ranks.push_back(stage.value(kStagePp, int64_t{1}));
      }
    }
    std::erase_if(ranks, [](int64_t count) { return count <= 1; });
    return ranks;
  }
  bool in_stages() const { return !stage_ranks().empty(); }

  CaseSettings& settings_;
  const std::set<std::string>& fixed_;
};

// Of a registered workload: its options fit its mesh and each other.
void fit_workload(CaseSettings& settings, const std::set<std::string>& fixed,
                  const WorkloadOptions& options);

// Of a model: what families with experts need, and what others do not have.
void fit_experts(CaseSettings& settings, const std::set<std::string>& fixed);

// Of parallel.pp.layout.
bool has_stage_without_layers(const std::string& layout);

// Of a stage that fails, or is interrupted in one of so many global batches: a load that fails
// names no mesh, and only a stage that trains on can be interrupted.
void fit_failures(nlohmann::json& stage, int64_t batches);

// Of a case in stages: schedule, chunks, layers and microbatches fit each other.
void fit_pipeline(CaseSettings& settings, const std::set<std::string>& fixed);

inline constexpr int64_t kMostDrawnRanks = 16;

// Makes the sizes of a drawn case agree (fit.cpp). Leaves the keys of `fixed` as they are.
// `options`: those of a registered workload.
void fit_sizes(CaseSettings& settings, const std::set<std::string>& fixed,
               const WorkloadOptions& options = {});

// Whether the ranks refuse this whatever else is set: stages of a policy with experts below
// float64.
bool is_refused(const CaseSettings& settings);

}  // namespace shardproof::sim::explore
