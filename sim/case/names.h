// The names that a scenario, a case or the command line may use. Each list is written once.
#pragma once

#include <algorithm>
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
  names.push_back("world");
  return names;
}

// What is wrong with the name of an axis, or of several as "dp+cp"; "" if it is known.
inline std::string unknown_axis(const std::string& axis, const std::vector<std::string>& known) {
  auto from = known.begin();
  for (size_t begin = 0; begin <= axis.size();) {
    const size_t end = std::min(axis.find('+', begin), axis.size());
    const std::string name = axis.substr(begin, end - begin);
    if (std::find(known.begin(), known.end(), name) == known.end())
      return "unknown axis '" + name + "'";
    from = std::find(from, known.end(), name);
    if (from == known.end()) return "'" + axis + "' is not in the order of the mesh";
    begin = end + 1;
  }
  return "";
}
inline std::vector<std::string> known_collectives() {
  std::vector<std::string> names = all_names<Op>();
  names.pop_back();  // no fault names make_group
  return names;
}

// "known are AdamW, SGD; did you mean AdamW?" Without the question when no name is near.
std::string known_names(const std::string& word, const std::vector<std::string>& known);

}  // namespace shardproof::sim
