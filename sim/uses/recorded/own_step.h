// Judges a step by what the rank itself had before it, where nothing says how far roundings go
// through the optimizer, or where what the step is made from is unresolved.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "sim/judge/diff/result_row.h"
#include "sim/uses/recorded/recorded_run.h"
#include "sim/uses/recorded/reference.h"
#include "sim/uses/recorded/sources.h"

namespace shardproof::sim::recorded {

class OwnSteps {
 public:
  OwnSteps(const RecordedRun& run, const Reference& reference) : run_(run), reference_(reference) {}

  // Whether a parameter or state that is wrong by the rule of float64 may be what the rank's own
  // step made of what it had. The row is then unresolved. An update that is the golden's times
  // another number is wrong, and so is a state that does not follow from the rank's own state and
  // gradient by the rule of the golden's; the row says so. `eps` is the rounding of its values.
  bool explain(const RecordedPiece& piece, const GoldenTensor& golden, const Source& source,
               bool knows_rule, double eps, judge::ResultRow& row);

 private:
  // What the rank had of the same part of a tensor of the optimizer's step; null: nothing.
  const RecordedPiece* own(const RecordedPiece& piece, int64_t step, const std::string& name);
  bool breaks_rule(const RecordedPiece& piece, const GoldenTensor& golden);

  const RecordedRun& run_;
  const Reference& reference_;
  // By rank, step and name.
  std::map<std::tuple<int64_t, int64_t, std::string>, std::vector<const RecordedPiece*>> stepped_;
};

}  // namespace shardproof::sim::recorded
