// Whether a rank has left the golden's course of steps where the parts in which float16 gradients
// are summed decide about a skip (sim/case/record/golden_record.h).
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <sstream>
#include <vector>

#include "observe/phase.h"
#include "sim/case/record/golden_record.h"

namespace shardproof::sim::judge {

class PartedSteps {
 public:
  static constexpr const char* kReason =
      "the parts in which float16 gradients are summed decide whether one overflows, and this rank "
      "skipped another step than the golden";

  explicit PartedSteps(const GoldenRecord& golden) {
    const auto found = golden.metadata().find(kPartedSkips);
    if (found == golden.metadata().end()) return;
    std::istringstream text(found->second);
    steps_ = {std::istream_iterator<int64_t>(text), {}};
  }

  // The rank's metric.skipped of the step is another than the golden's. Returns whether the parts
  // may be the reason; from there on nothing of the rank's course is the golden's.
  bool leaves(int64_t step) {
    const bool may = std::find(steps_.begin(), steps_.end(), step) != steps_.end();
    if (may) left_ = step;
    return may;
  }
  bool has_left(Phase phase, int64_t step) const {
    return left_ >= 0 && (step > left_ || (step == left_ && phase == Phase::kStep));
  }

 private:
  std::vector<int64_t> steps_;
  int64_t left_ = -1;
};

}  // namespace shardproof::sim::judge
