// What became of planted faults: where each acted, who saw it, what it did to the gradients. Plain
// values.
//
// Detectors, by what they look at:
//   matching   the calls of all ranks side by side: disagreement, deadlock, never_waited
//   watchdog   nothing moves any more: hung
//   process    the exit of a process: died
//   exception  a rank that threw by itself
//   digest     hashes of buffers and tensors: what a call delivered against what was sent, what
//              was written to in flight, a recomputation that differs
//   values     a tensor against the golden
//   norm       the gradient norm against the golden, where no tensor before it was wrong
//   replicas   copies that must be equal to the bit, where the values are within their allowance
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sim/case/rank_ending.h"

namespace shardproof::sim {

struct Detection {
  std::string detector;
  int64_t step = 0;
  std::string what;  // the tensor, or the finding
};

struct FaultOutcome {
  std::vector<FaultNote> faults;
  std::vector<Detection> detections;  // one per detector, in the order in which they could see it
  int64_t gradients = 0;              // parameter gradients compared, over all steps
  int64_t wrong_gradients = 0;
  std::string first_gradient;  // the first wrong one: "grad.model.norm.weight of step 1"
  std::string worst_gradient;  // the one furthest beyond its allowance, with its numbers
};

}  // namespace shardproof::sim
