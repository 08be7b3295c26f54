// The table of what each host is: processor, GPU, driver, libraries, interfaces, limits, clock.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/uses/validate/finding.h"

namespace shardproof::sim::validate {

using Facts = std::map<std::string, std::string>;

// Facts of the machine under this process. "host" and "boot" say which machine it is; they and
// "addresses" differ from host to host. What cannot be found out is left out.
Facts machine_facts();

// How far a rank's clock is ahead of rank 0's, and how wrong that may be.
struct ClockOffset {
  double seconds = 0, uncertainty = 0;
};

struct OddFact {
  int64_t host = 0;
  std::string fact, value, usual;  // of more than half of the hosts
};
// `facts` by host. A fact that a host lacks is "" there.
std::vector<OddFact> odd_facts(const std::vector<Facts>& facts);

// One finding for each host whose clock is off by more than the limit and the uncertainty,
// relative to the lower median of all: then rank 0's own clock may be the odd one.
std::vector<ValidationFinding> clocks_off(const std::vector<ClockOffset>& by_rank,
                                          const Hosts& hosts, double limit_s);

// {"hosts": [{"name", "ranks", "facts", "odd": [..], "clock_offset_s", "clock_uncertainty_s"}]}
nlohmann::json environment_json(const std::vector<Facts>& facts, const Hosts& hosts,
                                const std::vector<ClockOffset>& by_rank);

}  // namespace shardproof::sim::validate
