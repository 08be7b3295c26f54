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

namespace shardproof::sim {

// One planted fault as its rank saw it.
struct FaultNote {
  int64_t index = 0;  // in the case's list of faults
  bool fired = false;
  int64_t step = 0;     // training step at which it acted; 0: before the first, or scoring
  std::string call;     // the call at which it acted
  std::string effect;   // "bit 52 of element 7 of the input: 0.25 became 0.5"
  std::string problem;  // why it could not act
  int64_t matches = 0;  // calls that it could have acted at
  int64_t calls = 0;    // all calls of the rank
};

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
