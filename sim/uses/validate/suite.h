// What `validate` does: a YAML file, each key with a default.
//
//   seed: 1                      # of all draws
//   stages: [environment, groups, pairs, times, training]
//   rounds: 2                    # of groups and pairs; --minutes goes on with further ones
//   sizes: [1, 33, 1023]         # elements of a rank; large groups take fewer
//   ops: [all_reduce]            # default: all that the backend has
//   dtypes: [float32]            # default: all that the backend has
//   mesh: {dp: 2, tp: 2}         # axis groups besides hosts; outer to inner, as a training mesh
//   hosts: {ranks_per_host: 2}   # ranks count as hosts of so many; default: the hosts they name
//   pairs: {rounds: 64}          # at most so many of the rounds in which each rank has one partner
//   times: {bytes: 1048576, repeats: 5}
//   training: {scenarios: [..], rotations: 3}
//   clock_limit_s: 1             # a clock that is further off is a finding
//   world: {hang_s: 5, deadline_s: 120, nodes: 4}   # nodes: network namespaces, made here
//   faults: [{kind: corrupt, host: 1, pattern: lane}]   # planted: a test of validate itself
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/call.h"
#include "sim/case/enum_json.h"
#include "sim/uses/validate/codes.h"

namespace shardproof::sim::validate {

enum class Stage { kEnvironment, kGroups, kPairs, kTimes, kTraining };
constexpr std::array<const char*, 5> names_of(Stage) {
  return {"environment", "groups", "pairs", "times", "training"};
}

enum class PlantedKind { kCorrupt, kSlow, kKill, kHang, kClock, kCut, kLag };
constexpr std::array<const char*, 7> names_of(PlantedKind) {
  return {"corrupt", "slow", "kill", "hang", "clock", "cut", "lag"};
}
enum class PlantedPattern { kElement, kSector, kLane, kAll };
constexpr std::array<const char*, 4> names_of(PlantedPattern) {
  return {"element", "sector", "lane", "all"};
}
enum class PlantedSide { kInput, kOutput };
constexpr std::array<const char*, 2> names_of(PlantedSide) { return {"input", "output"}; }

// A fault that a suite plants to test `validate`. It acts on the ranks of a host, or on one rank,
// or on messages between two hosts.
struct PlantedFault {
  PlantedKind kind = {};
  int64_t host = -1;               // in the order of their first ranks; -1: see `rank` and `link`
  int64_t rank = -1;               // started as this one, whatever a rotation makes of it
  std::vector<int64_t> link = {};  // two hosts; concerns send and recv only
  std::string stage = {};          // the name of a Stage; "": any
  PlantedPattern pattern = PlantedPattern::kElement;  // corrupt
  PlantedSide side = PlantedSide::kInput;
  int64_t first = 3;       // corrupt: the first element; a sector begins at or before it
  int64_t stride = 8;      // lane
  int64_t bit = -1;        // that flips; -1: the second highest of the element
  double probability = 1;  // corrupt: of each call
  // slow: before each call; clock: what its host's clock is ahead; lag: of each packet
  double seconds = 0.02;
  int64_t at_call = 5;  // kill, hang, cut, lag: before the call of this number of the stage
  double heal_s = 0;    // cut, lag: the link of the host's node is back after so long; 0: never
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PlantedFault, kind, host, rank, link, stage, pattern, side,
                                   first, stride, bit, probability, seconds, at_call, heal_s)

struct Suite {
  std::string file;  // "" for the defaults
  int64_t seed = 1;
  std::vector<Stage> stages = {Stage::kEnvironment, Stage::kGroups, Stage::kPairs, Stage::kTimes,
                               Stage::kTraining};
  int64_t rounds = 2;
  std::vector<int64_t> sizes = {1, 33, 1023};
  std::vector<Op> ops = {};
  std::vector<ElementType> dtypes = {};
  std::vector<std::pair<std::string, int64_t>> mesh = {};
  int64_t ranks_per_host = 0;
  int64_t pair_rounds = 64;
  int64_t times_bytes = 1 << 20, times_repeats = 5;
  std::vector<std::string> scenarios = {};  // none: a small Llama on a mesh of the ranks
  int64_t rotations = 3;                    // each one moves every rank to another process
  double clock_limit_s = 1;
  double hang_s = 5, deadline_s = 120;
  int64_t nodes = 0;  // 0: the ranks are where they are
  std::vector<PlantedFault> faults = {};

  bool has(Stage stage) const;
};
// What ranks need of it.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Suite, seed, sizes, ops, dtypes, mesh, pair_rounds, times_bytes,
                                   times_repeats, faults)

// Throws Error(kBadInput) with file, line and column.
Suite read_suite(const std::string& path);
Suite parse_suite(const std::string& file, const std::string& text);

// Whether a suite fits the ranks and hosts that are there.

// Throws Error(kBadInput) for a mesh of another size, and for a fault on a rank or, where they are
// known, a host that is not there.
void check_fits(const Suite& suite, int64_t ranks, std::optional<int64_t> hosts);

}  // namespace shardproof::sim::validate
