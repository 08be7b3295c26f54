// `validate`: all stages on one world, and what they find.
//
//   environment   what each host is; clocks
//   groups        codes through every group, op and dtype
//   pairs         codes between every two ranks, both ways
//   times         latency, bandwidth, arithmetic
//   training      scenarios, with the ranks rotated over the processes
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/uses/validate/finding.h"
#include "sim/uses/validate/suite.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim::validate {

struct ValidateSettings {
  Backend backend = Backend::kGloo;
  DeviceKind device = DeviceKind::kCpu;
  int64_t world_size = 1;
  double minutes = 0;      // goes on with further rounds for so long
  double slow_factor = 0;  // 0: nothing is too slow
  // The cases of `training` for so many ranks; none where there is none, which for `world_size`
  // ranks cannot be.
  std::function<std::vector<CaseSpec>(int64_t ranks)> cases;
  bool use_cache = true;  // of goldens
  // All ranks are processes of this machine. What it lacks for them is bad input then, and not a
  // finding about a host.
  bool on_this_machine = false;
};

// One stage of one round.
struct StageResult {
  Stage stage = {};
  int64_t round = 0;
  double seconds = 0;
  int64_t findings = 0;
  int64_t checks = 0;     // calls whose results were compared, over all ranks; runs of cases
  int64_t elements = 0;   // compared
  std::string note = {};  // "latency 43 us, 1.2 GB/s between hosts"
  std::vector<std::string> without = {};  // hosts that died or hung
  bool went_on = false;                   // on the other hosts

  // Whether it had nothing to compare, as an op that one rank alone does not make.
  bool is_empty() const {
    return stage != Stage::kEnvironment && checks == 0 && findings == 0 && without.empty();
  }
};

struct ValidationResult {
  int64_t world_size = 0;
  Hosts hosts = {};
  std::vector<StageResult> stages = {};
  std::vector<ValidationFinding> findings = {};  // equal ones of later rounds are left out
  nlohmann::json environment = nlohmann::json::object();
  nlohmann::json times = nlohmann::json::object();
  std::vector<nlohmann::json> training = {};  // a run each: case, round, shift, verdict, digests
  std::vector<std::string> left_out = {};     // combinations of op and dtype, with the reason
  double seconds = 0;
  bool interrupted = false;
  int exit_status = 0;
};

// Of the last stage, where none had anything to compare and none has a finding; the environment
// alone is no such stage. A run that compared nothing shows nothing.
std::optional<ValidationFinding> nothing_compared(const ValidationResult& result);
// A fault of the suite that is not among those that acted: without findings its suite shows
// nothing.
std::optional<ValidationFinding> idle_fault(const ValidationResult& result, const Suite& suite,
                                            const std::set<size_t>& acted);

// `on_stage` gets each stage when it has ended, with its findings. Throws Error(kBadInput) for a
// mesh that the ranks do not fill, and for what this machine lacks.
ValidationResult validate(
    world::WorldPool& pool, const Suite& suite, const ValidateSettings& settings,
    const std::function<void(const StageResult&, const std::vector<ValidationFinding>&)>& on_stage);

}  // namespace shardproof::sim::validate
