// Latency and bandwidth of each pair of ranks and the time of a fixed piece of arithmetic, and what
// is slow beside the median.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "sim/uses/validate/finding.h"

namespace shardproof::sim::validate {

struct PairTime {
  int64_t a = 0, b = 0;   // ranks, a < b
  double latency_us = 0;  // half of the shortest round trip of 8 bytes
  double gb_per_s = 0;    // of the fastest round trip of the large message
};

using RankPair = std::pair<int64_t, int64_t>;  // the smaller one first

struct Times {
  std::vector<PairTime> pairs;     // without most of those of a rank that is surely slow
  std::vector<double> compute_ms;  // of each rank: the shortest time of the arithmetic
};

// How many of these pairings (groups.h), from the first on, tell whether a rank is slow: each rank
// then has met ranks of half of the other hosts (three at least, or all), and three ranks. All of
// them where they are too few.
int64_t pairings_to_tell(const Hosts& hosts, const std::vector<int64_t>& pairings);

// All ranks of hosts of which each rank has met so many, and its shortest trip with them takes 20
// times the median of all pairs between hosts: hardly by chance. A host's only slow rank is not
// among them, since the links of the others would make the host look half slow.
std::vector<int64_t> surely_slow(const Times& times, const Hosts& hosts);

// The pairs that slow_ones() finds slow, without those of ranks that are surely so.
std::vector<RankPair> doubtful_pairs(const Times& times, const Hosts& hosts, double factor);

// {"in_host": {"pairs", "latency_us", "gb_per_s"}, "between_hosts": {..}, "compute_ms",
//  "pairs": [{"a", "b", "latency_us", "gb_per_s", "latency_factor", "bandwidth_factor"}]}; the
// pairs are the slowest ones, at most `most`.
nlohmann::json to_json(const Times& times, const Hosts& hosts, size_t most);

// What that says, as "40 us, 1.2 GB/s in a host; 69 us, 0.6 GB/s between hosts".
std::string medians_text(const nlohmann::json& times);

// Pairs whose latency is more than `factor` medians or whose bandwidth is less than a median /
// `factor`, and ranks whose arithmetic takes more than `factor` medians. Pairs within hosts and
// between them have medians of their own. A host of which two thirds of the other hosts' links are
// slow is slow itself, when there are at least three other hosts; else the links are.
std::vector<ValidationFinding> slow_ones(const Times& times, const Hosts& hosts, double factor,
                                         int64_t round);

}  // namespace shardproof::sim::validate
