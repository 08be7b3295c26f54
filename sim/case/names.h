// The names that a scenario, a case or the command line may use. Each list is written once.
#pragma once

#include <string>
#include <vector>

#include "base/call.h"
#include "sim/case/case_spec.h"

namespace shardproof::sim {

inline std::vector<std::string> known_workloads() { return all_names<ModelWorkload>(); }
inline bool is_model_workload(const std::string& name) {
  return find_enum<ModelWorkload>(name).has_value();
}
inline std::vector<std::string> known_backends() { return all_names<Backend>(); }
inline std::vector<std::string> known_devices() { return all_names<DeviceKind>(); }
// Of a call's group.
inline std::vector<std::string> known_axes() {
  std::vector<std::string> names = axis_names();
  for (std::string& name : expert_names()) names.push_back(std::move(name));
  names.insert(names.end(), {"world", "refit"});
  return names;
}
inline std::vector<std::string> known_collectives() {
  std::vector<std::string> names = all_names<Op>();
  names.pop_back();  // no fault names make_group
  return names;
}

// What is wrong with the name of an axis, or of several as "dp+cp" in their order; "" if it is
// known.
std::string unknown_axis(const std::string& axis);
// As calls name their group: "dp,cp" of "dp+cp".
std::string group_of_axis(std::string axis);

// "known are AdamW, SGD; did you mean AdamW?" Without the question when no name is near.
std::string known_names(const std::string& word, const std::vector<std::string>& known);

}  // namespace shardproof::sim
