// The hosts of a job, and what `validate` finds, with the host, rank or link at fault.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/uses/validate/suite.h"

namespace shardproof::sim::validate {

// The hosts of a job, in the order of their first ranks.
struct Hosts {
  std::vector<std::string> names = {};
  std::vector<int64_t> of_rank = {};  // each rank's host, a number in `names`

  int64_t count() const { return static_cast<int64_t>(names.size()); }
  int64_t of(int64_t rank) const { return of_rank[static_cast<size_t>(rank)]; }
  const std::string& name(int64_t host) const { return names[static_cast<size_t>(host)]; }
  std::vector<int64_t> ranks_of(int64_t host) const;
  std::string text(int64_t rank) const;  // "rank 3 on node7"
  // "host2", and of a name that does not say it "host node7".
  std::string called(int64_t host) const { return call(name(host)); }
  static std::string call(const std::string& name);
  // The same hosts of a world whose ranks are on these processes.
  Hosts of_processes(const std::vector<int64_t>& processes) const;
};

// `machines`: the name and the boot id of each rank's host. Machines with equal names become
// "name (1)" and "name (2)". With `ranks_per_host` > 0 that many ranks in a row are a host:
// "host0".
Hosts hosts_of(const std::vector<std::pair<std::string, std::string>>& machines,
               int64_t ranks_per_host);

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
  std::string case_name = {};           // whose training is wrong
  bool at_end = false;                  // of the whole run, though it is counted in the last stage
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ValidationFinding, stage, kind, round, hosts, ranks, link,
                                   pattern, message)
// The exit status: 2 bad input, 3 died, hung, threw, slow or a clock, 1 wrong values, else 0. The
// first of these that occurs counts.
int exit_status_of(const std::vector<ValidationFinding>& findings);

}  // namespace shardproof::sim::validate
