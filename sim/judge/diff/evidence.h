// What a rank finds out about a wrong tensor while it has the whole golden at hand: facts with
// their numbers. What they are called stands in wording.h; no code reads that text.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace shardproof::sim {

// All of it equals the golden's tensor of this name after another step.
struct EqualsStep {
  int64_t step = 0;
  bool is_later = false;
  bool operator==(const EqualsStep&) const = default;
};
// Two elements or more are wrong, and those equal the golden's of this earlier step.
struct PartEqualsStep {
  int64_t step = 0;
  bool operator==(const PartEqualsStep&) const = default;
};
// The golden's tensors of two steps, added up.
struct SumOfSteps {
  int64_t before = 0, now = 0;
  bool operator==(const SumOfSteps&) const = default;
};
// A weight moved by this share of the golden's update.
struct ShareOfUpdate {
  double share = 1;
  bool operator==(const ShareOfUpdate& other) const {
    return std::fabs(share - other.share) <= 0.02 * std::fabs(share);
  }
};
// All of it equals another tensor of the golden.
struct EqualsTensor {
  std::string name;
  bool operator==(const EqualsTensor&) const = default;
};
// Every value is one of a narrower dtype, and near the golden's.
struct ValuesOf {
  std::string dtype;
  bool operator==(const ValuesOf&) const = default;
};
// Every value is a float32, off by what this dtype rounds: it is a sum of such values.
struct AddendsThrough {
  std::string dtype;
  bool operator==(const AddendsThrough&) const = default;
};

using Evidence = std::variant<EqualsStep, PartEqualsStep, SumOfSteps, ShareOfUpdate, EqualsTensor,
                              ValuesOf, AddendsThrough>;

}  // namespace shardproof::sim
