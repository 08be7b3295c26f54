// The outcome of planted faults: where each acted, which detectors saw it, and its effect on
// gradients. These are plain values.
//
// The detectors, by the data that they watch:
//   matching   the calls of all ranks together: disagreement, deadlock, never_waited
//   watchdog   no rank makes progress: hung
//   process    the exit of a process: died
//   exception  an exception on a rank that no other rank caused
//   digest     hashes of buffers and tensors: a call delivered something other than was sent, a
//              buffer was written to in flight, a recomputation differs
//   values     a tensor differs from the golden
//   norm       the gradient norm differs from the golden, and no tensor before it does
//   replicas   copies that must be bit-equal are not, and are within their allowance
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/case/rank_ending.h"

namespace shardproof::sim::judge {

struct Detection {
  std::string detector;
  int64_t step = 0;
  std::string what;  // the tensor or the finding
};

struct FaultOutcome {
  std::vector<FaultNote> faults;
  std::vector<Detection> detections;  // one per detector, in the order in which they could see it
  int64_t gradients = 0;              // parameter gradients compared, over all steps
  int64_t wrong_gradients = 0;
  std::string first_gradient;  // the first wrong gradient: "grad.model.norm.weight of step 1"
  std::string worst_gradient;  // the largest error over its allowance, with its numbers
};

}  // namespace shardproof::sim::judge
