// What `validate` finds, with the host, rank or link at fault.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/case/enum_json.h"
#include "sim/uses/validate/suite.h"

namespace shardproof::sim::validate {

enum class FindingKind { kValues, kDigest, kSlow, kClock, kDied, kHung, kThrew, kBadInput };
constexpr std::array<const char*, 8> names_of(FindingKind) {
  return {"values", "digest", "slow", "clock", "died", "hung", "threw", "bad_input"};
}

struct ValidationFinding {
  Stage stage = {};
  FindingKind kind = {};
  int64_t round = 0;
  std::vector<std::string> hosts = {};  // at fault: one, or all that may be; []: no host is
  std::vector<int64_t> ranks = {};      // as started; []: all of the hosts, or unknown
  std::string link = {};                // "node1 - node2"; "": not a link
  std::string pattern = {};             // of wrong elements
  std::string message = {};             // whole sentences
};

nlohmann::json to_json(const ValidationFinding& finding);
// The exit status: 2 bad input, 3 died, hung, threw, slow or a clock, 1 wrong values, else 0. The
// first of these that occurs counts.
int exit_status_of(const std::vector<ValidationFinding>& findings);

}  // namespace shardproof::sim::validate
