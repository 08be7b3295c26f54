// Judges a step by what the rank itself had before it, where nothing says how far roundings go
// through the optimizer, or where what the step is made from is unresolved.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "sim/case/record/golden_record.h"
#include "sim/judge/diff/result_row.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"

namespace shardproof::sim::recorded {

// What the values of a float64 run are computed from, where that was not judged: parameters that
// are unresolved, and gradients that were recorded below float64. Values that are computed from
// them may differ from the reference's, but not without limit.

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

class OwnSteps {
 public:
  OwnSteps(const RecordedRun& run, const Reference& reference) : run_(run), reference_(reference) {}

  // Whether a parameter or state that is wrong by the rule of float64 may be what the rank's own
  // step made of what it had. The row is then unresolved. An update that is the golden's times
  // another number is wrong, and so is a state that does not follow from the rank's own state and
  // gradient by the rule of the golden's; the row says so. Where the reference `is_repeated`, its
  // repeats have said what an unknown rule may make. `eps` is the rounding of the row's values.
  bool explain(const RecordedPiece& piece, const GoldenTensor& golden, const Source& source,
               bool knows_rule, bool is_repeated, double eps, judge::ResultRow& row);

 private:
  // What the rank had of the same part of a tensor of the optimizer's step; null: nothing.
  const RecordedPiece* own(const RecordedPiece& piece, int64_t step, const std::string& name);
  bool breaks_rule(const RecordedPiece& piece, const GoldenTensor& golden);
  // Of a parameter that moved from the golden's value by the golden's gradient: the correlation of
  // its update with the golden's. Unset where the gradient is another one, or too few elements
  // tell.
  std::optional<double> alike(const RecordedPiece& now, const RecordedPiece& before,
                              const GoldenTensor& golden, const GoldenTensor& golden_before,
                              const GoldenTensor& grad);
  // The farthest that the golden moved an element of a parameter in the step.
  double largest_update(int64_t step);

  const RecordedRun& run_;
  const Reference& reference_;
  std::map<int64_t, double> largest_updates_;  // by step
  // By rank, step and name.
  std::map<std::tuple<int64_t, int64_t, std::string>, std::vector<const RecordedPiece*>> stepped_;
};

// How an optimizer makes a state of the one before it, read from what the golden recorded.

// After a step, a state is `kept` times itself before plus `added` times the gradient, or the
// gradient's square: a moment, a sum, a buffer of momentum.
struct StateRule {
  double kept = 0, added = 0;
  bool squares = false;

  double of(double gradient) const { return squares ? gradient * gradient : gradient; }
};

// The rule that gives the golden's state of this step, to the rounding of float64; none where no
// such rule does, or where the golden cannot tell, as at step 1.
std::optional<StateRule> rule_of_state(const GoldenRecord& golden, const GoldenTensor& state);

}  // namespace shardproof::sim::recorded
