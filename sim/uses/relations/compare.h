// Compares the values of the two runs of a relation, by the float64 rule of tolerance.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/uses/relations/relations.h"

namespace shardproof::sim::relations {

// The first tensor that differs, in the order of the computation.
struct Difference {
  std::string tensor;
  std::string missing;           // "" or the run that has no such tensor
  std::vector<int64_t> index;    // of the largest error
  double first = 0, second = 0;  // the values there
  double error = 0, allowed = 0;
  int64_t wrong = 0, count = 0;  // elements
};

struct Comparison {
  std::optional<Difference> difference;
  int64_t tensors = 0, elements = 0;
  double worst_ratio = 0;  // largest used share of an allowance
  std::string worst_tensor;
};

// Both after bring_back(). With `exact`, the bits must be equal.
Comparison compare_values(const CaseSpec& spec, const Values& first, const Values& second,
                          bool exact);
// "logprobs[1, 3] is 2 and, with 4 times the loss, 8: error 6, allowed 1e-10; 12 of 64 elements
// differ"
std::string difference_text(const Difference& difference, const std::string& changed);

}  // namespace shardproof::sim::relations
