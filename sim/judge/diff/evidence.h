// The facts that a rank finds about a wrong tensor while it has the whole golden, with their
// numbers. wording.h turns them into text, which no code reads.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace shardproof::sim::judge {

// The whole tensor equals the golden tensor of this name after another step.
struct EqualsStep {
  int64_t step = 0;
  bool is_later = false;
  bool operator==(const EqualsStep&) const = default;
};
// At least two elements are wrong, and all wrong ones equal the golden of this earlier step.
struct PartEqualsStep {
  int64_t step = 0;
  bool operator==(const PartEqualsStep&) const = default;
};
// The tensor is the sum of the golden tensors of two steps.
struct SumOfSteps {
  int64_t before = 0, now = 0;
  bool operator==(const SumOfSteps&) const = default;
};
// A weight moved by this share of the golden update.
struct ShareOfUpdate {
  double share = 1;
  bool operator==(const ShareOfUpdate& other) const {
    return std::fabs(share - other.share) <= 0.02 * std::fabs(share);
  }
};
// The whole tensor equals another tensor of the golden.
struct EqualsTensor {
  std::string name;
  bool operator==(const EqualsTensor&) const = default;
};
// Every value is representable in a narrower dtype and is near the golden.
struct ValuesOf {
  std::string dtype;
  bool operator==(const ValuesOf&) const = default;
};
// Every value is a float32 whose error is a rounding of this dtype: a sum of such values.
struct AddendsThrough {
  std::string dtype;
  bool operator==(const AddendsThrough&) const = default;
};

using Evidence = std::variant<EqualsStep, PartEqualsStep, SumOfSteps, ShareOfUpdate, EqualsTensor,
                              ValuesOf, AddendsThrough>;

// Turns evidence into text.

// For example "equals the golden of step 1: stale, it was not updated".
std::string text_of(const Evidence& evidence);

}  // namespace shardproof::sim::judge
