// Where the time of a case went, on the virtual clocks of its ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"

namespace shardproof::sim {

// compute + waiting + exposed = total.
struct RankTime {
  int64_t rank = 0;
  double total_us = 0;
  double compute_us = 0;
  double waiting_us = 0;        // blocked before the slowest member had come
  double exposed_us = 0;        // blocked while bytes moved
  double communication_us = 0;  // all its transfers, hidden ones included
};

// One stretch of the chain of events that made the case last as long as it did: at its end the next
// one could begin, on this rank or another.
struct PathStep {
  int64_t rank = 0;
  bool compute = false;
  std::string name;  // of the call; "compute"
  double start_us = 0, duration_us = 0;
};

struct VirtualTime {
  double total_us = 0;  // of the rank that ends last
  std::vector<RankTime> ranks;
  std::vector<PathStep> path;  // from 0 to total_us without a gap
};

// From the timelines of the reports; none when their time is wall time.
std::optional<VirtualTime> virtual_time(const CaseResult& result);

// What the path's time went into, the most first: "rank 3 compute", "all_reduce(sum) tp[2,3]".
struct PathShare {
  std::string what;
  double duration_us = 0;
};
std::vector<PathShare> path_shares(const VirtualTime& time);

// "virtual 1.234 ms: compute 0.9, waiting 0.1, exposed communication 0.2 of 0.5 (mean over ranks);
// critical path: rank 3 compute 71%, all_reduce(sum) tp[2,3] 18%, .." Only for cases whose scenario
// says what time means (links or fixed costs); "" otherwise.
std::string virtual_time_line(const CaseResult& result);

}  // namespace shardproof::sim
