// A scenario file: checked, expanded over its matrix, one CaseSpec for each row.
#pragma once

#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/scenario/known_workload.h"

namespace shardproof::sim {

// What the cases are for: a world, which conditions of `skip` may name, and a program.
struct WorldChoice {
  std::string backend = "emulated";
  std::string device = "cpu";
  std::vector<KnownWorkload> workloads = {};  // beside train and logprobs
};

struct Scenario {
  std::string file;
  std::string name;             // "tp/llama"
  std::vector<CaseSpec> cases;  // in the order of the matrix; skipped ones with their reason
};

// Throws Error(kBadInput), "file:line:column: ...": everything that is wrong on every mesh and can
// be seen without tensors; the first thing that is wrong.
Scenario parse_scenario(const std::string& path, const WorldChoice& world = {});
Scenario parse_scenario_text(const std::string& file, const std::string& text,
                             const WorldChoice& world = {});

}  // namespace shardproof::sim
