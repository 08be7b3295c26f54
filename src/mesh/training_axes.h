// The axes of a training mesh: the one list of them. Option keys, --mesh, replays, saved states and
// estimates are made from it. A parallel style with an axis of its own adds the axis' size to
// AxisSizes and a row to kTrainingAxes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shardproof {

// What each rank of an axis has a share of.
enum class Share { kSamples, kPositions, kModel };

// The ranks of each axis, and of each part for experts.
struct AxisSizes {
  int64_t pp = 1;
  int64_t dp = 1;
  int64_t cp = 1;
  int64_t ulysses = 1;
  int64_t tp = 1;
  int64_t ep = 1;
  int64_t etp = 1;

  // The product of all axes, or of those whose ranks have shares of `share`.
  int64_t ranks() const;
  int64_t ranks(Share share) const;
  bool operator==(const AxisSizes&) const = default;
};

struct TrainingAxis {
  const char* name;  // in --mesh, in names of groups and in results
  int64_t AxisSizes::*size;
  const char* key;  // of its size in a scenario file, in `parallel` and in a load
  Share share;
};

// Outer to inner.
inline constexpr TrainingAxis kTrainingAxes[] = {
    {"pp", &AxisSizes::pp, "pipeline_parallel_size", Share::kModel},
    {"dp", &AxisSizes::dp, "data_parallel_size", Share::kSamples},
    {"cp", &AxisSizes::cp, "context_parallel_size", Share::kPositions},
    {"ulysses", &AxisSizes::ulysses, "ulysses_size", Share::kPositions},
    {"tp", &AxisSizes::tp, "tensor_parallel_size", Share::kModel},
};

// A part of the mesh: another view of the ranks that hold the same layers, which is not a factor of
// the world.
struct ExpertPart {
  const char* name;
  int64_t AxisSizes::*size;
  const char* key;  // in `parallel`
};

// Outer to inner. A rank of these layers has etp = rank % etp and ep = rank / etp % ep; the ranks
// that hold the same part of the experts are the part `edp`.
inline constexpr ExpertPart kExpertParts[] = {
    {"ep", &AxisSizes::ep, "expert_parallel_size"},
    {"etp", &AxisSizes::etp, "expert_tensor_parallel_size"},
};

std::vector<std::string> axis_names();
// The names above, "edp", and that of the ranks which hold all experts once.
std::vector<std::string> expert_names();
// {2, ..}: every axis has `size` ranks.
AxisSizes same_sizes(int64_t size);

}  // namespace shardproof
