// What `validate` writes and prints (docs/validate.md has the schema).
#pragma once

#include <string>

#include "sim/uses/validate/validation.h"

namespace shardproof::sim::validate {

struct ValidateRun {
  std::string command;  // as it was typed
  std::string version;
  std::string started;  // UTC
  std::string suite;    // its file; "": the defaults
  ValidateSettings settings;
};

nlohmann::ordered_json validation_json(const ValidationResult& result, const ValidateRun& run);
// One test case for each stage and round; a stage with findings has failed.
std::string validation_junit(const ValidationResult& result, const ValidateRun& run);

// "groups  round 0  ok     420 results of 1200000 elements, 0 wrong   0.8 s", then its findings.
std::string stage_text(const StageResult& stage, const std::vector<ValidationFinding>& findings);
// A section of the summary of a job (sim/report/summary.h); the results are in `folder`.
std::string validation_section(const ValidationResult& result, const std::string& folder);
// The odd facts of hosts, all findings with their hosts, and the verdict.
std::string verdict_text(const ValidationResult& result);

}  // namespace shardproof::sim::validate
