// A workload as scenarios know it: what may be named, and which options may be set.
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

// Sets workload and options, defaults filled in. Throws Error(kBadInput) at the place in the file:
// an unknown workload or option, a value of another type, keys of a model where there is none.
void set_workload(const Settings& settings, const std::vector<KnownWorkload>& known,
                  CaseSpec& spec);

}  // namespace shardproof::sim
