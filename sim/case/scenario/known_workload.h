// A workload that scenarios may name, and its options.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/scenario/settings.h"

namespace shardproof::sim {

struct KnownWorkload {
  std::string name;
  std::string about;
  nlohmann::json options = nlohmann::json::object();  // with their default values
};

// scenarios/workloads.json, for a program that cannot run them: {name: {about, options}}.
nlohmann::json workload_table(const std::vector<KnownWorkload>& known);
std::vector<KnownWorkload> known_workloads_from_json(const nlohmann::json& table);

// Throws Error(kBadInput) at the position in the file for an unknown workload.
void check_workload(const Settings& settings, const std::vector<KnownWorkload>& known);
// Sets the workload and its options with defaults. Throws Error(kBadInput) at the position in the
// file for an unknown workload or option, a value of another type, and keys of a model that the
// workload lacks.
void set_workload(const Settings& settings, const std::vector<KnownWorkload>& known,
                  CaseSpec& spec);

}  // namespace shardproof::sim
