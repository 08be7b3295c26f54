// Checks a scenario file and expands it over its matrix, to one CaseSpec for each row.
#pragma once

#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/scenario/known_workload.h"

namespace shardproof::sim {

// The world and the program for which cases are made; conditions of `skip` may name the world.
struct WorldChoice {
  Backend backend = Backend::kEmulated;
  DeviceKind device = DeviceKind::kCpu;
  std::vector<KnownWorkload> workloads = {};  // beside train and logprobs
};

struct Scenario {
  std::string file;
  std::string name;             // "tp/llama"
  std::vector<CaseSpec> cases;  // in the order of the matrix; skipped ones have their reason
  // What the file says of each case, its row of the matrix included: {key: value}.
  std::vector<nlohmann::json> settings = {};
};

// Throws one Error(kBadInput) with a line "file:line:column: ..." for each error that is
// independent of the mesh and can be found without tensors: all wrong keys, or, when no single key
// is wrong, the first error of each row of the matrix.
Scenario parse_scenario(const std::string& path, const WorldChoice& world = {});
Scenario parse_scenario_text(const std::string& file, const std::string& text,
                             const WorldChoice& world = {});

}  // namespace shardproof::sim
