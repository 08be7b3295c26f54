// What options need in order to have an effect, for the rows of options.
#pragma once

#include <string>
#include <vector>

#include "base/families.h"
#include "sim/case/names.h"
#include "sim/case/row.h"

namespace shardproof::sim {

inline constexpr NotPaired kOfExperts{"of models with experts alone: scenarios/ep, and `fuzz`"};

inline Needed more_than_one(const TrainingAxis& axis) {
  return {std::string("parallel.") + axis.key, nullptr};
}
inline Needed tp() { return {"parallel.tensor_parallel_size", nullptr}; }
inline Needed cp() { return {"parallel.context_parallel_size", nullptr}; }
inline Needed dp() { return {"parallel.data_parallel_size", nullptr}; }
inline Needed pp() { return {"parallel.pipeline_parallel_size", nullptr}; }
inline Needed workload(ModelWorkload kind) { return {"workload", name_of(kind)}; }
inline Needed stage(StageKind kind) { return {"run.stages[].do", name_of(kind)}; }

// All of these.
template <class... One>
Needs all_of(const One&... one) {
  return {{Way{one...}}};
}

// One of these is enough.
template <class... One>
Needs any_of(const One&... one) {
  return {{Way{one}...}};
}

inline Needs any_value(const std::string& path, const std::vector<std::string>& values) {
  Needs needs;
  for (const std::string& value : values) needs.ways.push_back({{path, value}});
  return needs;
}

// `also`, in each of the ways.
inline Needs with(const Needed& also, Needs needs) {
  for (Way& way : needs.ways) way.push_back(also);
  return needs;
}

// One of the ways of either is enough.
inline Needs either(Needs one, const Needs& other) {
  one.ways.insert(one.ways.end(), other.ways.begin(), other.ways.end());
  return one;
}

inline Needs trains() { return any_of(workload(ModelWorkload::kTrain), stage(StageKind::kTrain)); }
inline Needs scores_or_refers() {
  return any_of(workload(ModelWorkload::kLogprobs), stage(StageKind::kScore),
                stage(StageKind::kReference));
}
// A number above 0, of which 0.5 is one.
inline Needed above_0(const std::string& path) { return {path, 0.5, 0.0}; }
// Each of `needs`, in each of the families of which `has` is true; without needs the families
// alone.
template <class Has>
Needs in_families(const Has& has, const Needs& needs = {{Way{}}}) {
  Needs all;
  for (const FamilyTraits& family : all_families()) {
    if (has(family)) all = either(all, with({"model.family", family.name}, needs));
  }
  return all;
}
inline Needs with_experts(const Needs& needs = {{Way{}}}) {
  return in_families([](const FamilyTraits& family) { return family.has_experts(); }, needs);
}
inline Needs shards() { return any_value("parallel.data_parallel", {"fsdp", "hybrid"}); }

}  // namespace shardproof::sim
