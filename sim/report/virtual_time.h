// Where the time of a case went, on the virtual clocks of its ranks.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim::report {

// compute + waiting + exposed = total.
struct RankTime {
  int64_t rank = 0;
  double total_us = 0;
  double compute_us = 0;
  double waiting_us = 0;        // blocked before the slowest member came
  double exposed_us = 0;        // blocked while bytes moved
  double communication_us = 0;  // all transfers, including hidden ones
};

// One interval on the chain of events that determined the length of the case. The next interval, on
// this rank or another, could not begin before its end.
struct PathStep {
  int64_t rank = 0;
  bool compute = false;
  std::string name;  // the call, or "compute"
  double start_us = 0, duration_us = 0;
};

struct VirtualTime {
  double total_us = 0;  // of the rank that ends last
  std::vector<RankTime> ranks;
  std::vector<PathStep> path;  // from 0 to total_us without a gap
  // Of stages: the share of their time between the first and the last action of a step in which
  // they compute none, and the share that the papers give for the schedule.
  std::optional<double> bubble = {}, bubble_formula = {};
};

// Computed from the timelines of the reports; none when they are in wall time.
std::optional<VirtualTime> virtual_time(const judge::CaseResult& result);

// A share of the path's time: "rank 3 compute", "all_reduce(sum) tp[2,3]". Largest first.
struct PathShare {
  std::string what;
  double duration_us = 0;
};
std::vector<PathShare> path_shares(const VirtualTime& time);

// "virtual 1.234 ms: compute 0.9, waiting 0.1, exposed communication 0.2 of 0.5 (mean over ranks);
// critical path: rank 3 compute 71%, all_reduce(sum) tp[2,3] 18%, .." Returns "" unless the
// scenario defines virtual time (links, stragglers or fixed costs).
std::string virtual_time_line(const judge::CaseResult& result);

// In results.json: {"total_us", "ranks": [{"rank", "total_us", "compute_us", "waiting_us",
// "exposed_us", "communication_us"}], "critical_path": [{"rank", "what", "start_us",
// "duration_us"}], "critical_path_left_out", "critical_path_shares": [{"what", "duration_us"}]}. A
// long path has only its longest steps, in order, and the number left out. Shares are of the whole
// path, largest first. Of stages also "bubble" and "bubble_formula". Null in wall time.
nlohmann::ordered_json virtual_time_json(const judge::CaseResult& result);

}  // namespace shardproof::sim::report
