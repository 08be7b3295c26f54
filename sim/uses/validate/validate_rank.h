// One rank's part of a stage of `validate`. A stage runs as a case of the workload "validate",
// whose options name it; the rank's ending carries a StageReport.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/uses/validate/suite.h"
#include "sim/uses/validate/times.h"
#include "sim/world/rank/run_rank.h"

namespace shardproof::sim::validate {

inline constexpr const char* kValidateWorkload = "validate";

// Of a round's pairings (pairings_of), those of `times` that run together.
struct PairingsPart {
  int64_t count = std::numeric_limits<int64_t>::max();  // the first so many
  bool briefly = false;                // two trips of the small message, one of the large
  std::vector<int64_t> left_out = {};  // ranks whose pairings are not measured
  std::optional<std::vector<RankPair>> again = {};  // only these pairs are measured
};

// What the ranks of one stage get.
struct StageRequest {
  Stage stage = {};
  int64_t round = 0;
  Suite suite = {};
  std::vector<int64_t> host_of = {};  // []: not known yet, and nothing is planted
  std::vector<int64_t> members = {};  // the ranks that take part; []: all
  PairingsPart pairings = {};         // times
  nlohmann::json training = {};       // training: the case, of as many ranks as there are members
  int64_t shift = 0;                  // training: see groups.h
};

// What one rank sends back: JSON, and in `training` the report of the case beside it. null: the
// rank takes no part. "acted" has the numbers of the planted faults that acted on it.
struct StageReport {
  nlohmann::json json;
  std::string case_report = {};
};

// Adds the numbers, in the suite's list, of the faults that the world planted and that acted.
void add_acted(const std::vector<RankEnding>& endings, const CaseSpec& spec,
               const StageRequest& request, std::set<size_t>& acted);

CaseSpec case_of(const StageRequest& request, const WorldSpec& world, int64_t world_size);
std::string encode(const StageReport& report);
// Throws InternalError when encode() did not make the bytes.
StageReport decode_stage_report(const std::string& bytes);

// As RankMain; `run_case` runs a case of another workload.
std::string validate_rank(const CaseSpec& spec, const world::RankEnv& env,
                          const world::RankMain& run_case);

}  // namespace shardproof::sim::validate
