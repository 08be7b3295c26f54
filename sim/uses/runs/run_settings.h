// How the cases of a run are run, how far it goes, and what is printed of it.
#pragma once

#include <cstdint>
#include <optional>

namespace shardproof::sim::runs {

inline constexpr int64_t kAllSchedules = -1;  // of RunSettings::schedules

struct RunSettings {
  int64_t jobs = 0;                     // cases at a time; 0: as many as the cores allow
  int64_t schedules = 0;                // each emulated case under so many; 0: as the threads come;
                                        // kAllSchedules: under all that can differ
  bool relations = false;               // instead of the golden, cases and changed cases
  bool drawn = false;                   // a refusal is as expected
  int64_t max_fail = 0;                 // start no case after so many that are not as expected;
                                        // 0: all
  std::optional<double> time_budget_s;  // start no case after it
  bool quiet = false;                   // no line for expected results
  bool json_lines = false;              // standard output gets a line of JSON for each case
};

}  // namespace shardproof::sim::runs
