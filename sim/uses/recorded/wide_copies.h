// Tensors that some ranks recorded in float64 and others in a narrower dtype.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "sim/uses/recorded/recorded_run.h"

namespace shardproof::sim::recorded {

class WideCopies {
 public:
  explicit WideCopies(const RecordedRun& run);
  // Whether a piece of a floating tensor with dims is below float64, and its rank has
  // nothing of the tensor in float64, where another rank has.
  bool are_elsewhere(const RecordedPiece& piece) const;

 private:
  std::map<std::string, std::set<int64_t>> ranks_;  // by the tensor's record key
};

}  // namespace shardproof::sim::recorded
