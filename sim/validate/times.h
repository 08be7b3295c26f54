// Latency and bandwidth of each pair of ranks and the time of a fixed piece of arithmetic, and what
// is slow beside the median.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "sim/validate/finding.h"
#include "sim/validate/hosts.h"

namespace shardproof::sim {

struct PairTime {
  int64_t a = 0, b = 0;   // ranks, a < b
  double latency_us = 0;  // half of the shortest round trip of 8 bytes
  double gb_per_s = 0;    // of the fastest round trip of the large message
};

struct Times {
  std::vector<PairTime> pairs;
  std::vector<double> compute_ms;  // of each rank: the shortest time of the arithmetic
};

// {"in_host": {"pairs", "latency_us", "gb_per_s"}, "between_hosts": {..}, "compute_ms",
//  "pairs": [{"a", "b", "latency_us", "gb_per_s", "latency_factor", "bandwidth_factor"}]}; the
// pairs are the slowest ones, at most `most`.
nlohmann::json to_json(const Times& times, const Hosts& hosts, size_t most);

// Pairs whose latency is more than `factor` medians or whose bandwidth is less than a median /
// `factor`, and ranks whose arithmetic takes more than `factor` medians. Pairs within hosts and
// between them have medians of their own. A host of which two thirds of the other hosts' links are
// slow is slow itself, when there are at least three other hosts; else the links are.
std::vector<ValidationFinding> slow_ones(const Times& times, const Hosts& hosts, double factor,
                                         int64_t round);

}  // namespace shardproof::sim
