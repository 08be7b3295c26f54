// What the values of a float64 run are computed from, where that was not judged: parameters that
// are unresolved, and gradients that were recorded below float64. Values that are computed from
// them may differ from the reference's, but not without limit.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>

#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

// By how much that differs, relative to its size. 0: all of it was judged.
struct Source {
  static constexpr double kSensitive = 30;  // of a number to what it is computed from
  double difference = 0;
  std::string reason = {};  // a clause that says what it is

  bool is_judged() const { return difference == 0; }
  // By how much a number that is computed from it may differ, relative to its size, at the most.
  double least_of_other() const { return kSensitive * difference; }
  // The most by which the largest element of a right tensor of this scale may differ.
  double allowance(double scale, double phase_scale) const;
};

class Sources {
 public:
  Sources(const RecordedRun& run, const Reference& reference);

  // After all pieces of earlier steps were judged.
  Source of(const RecordedPiece& piece);
  // A piece of which the values are unresolved, and which no repeats measure.
  void add_unresolved(const RecordedPiece& piece);

 private:
  struct Narrow {
    double eps = 0;
    std::string dtype;
    int64_t step = 0;
  };
  double parameters_apart(int64_t step);

  const RecordedRun& run_;
  const Reference& reference_;
  std::map<int64_t, Narrow> narrow_;  // the widest rounding of the gradients, by step
  int64_t first_unresolved_ = std::numeric_limits<int64_t>::max();  // step of a parameter
  std::map<int64_t, double> apart_;                                 // of the parameters, by step
};

}  // namespace shardproof::sim::recorded
