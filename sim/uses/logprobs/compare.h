// Compares two files of logprobs and names the cause of their difference.
#pragma once

#include <string>
#include <vector>

#include "sim/uses/logprobs/claim.h"

namespace shardproof::sim::logprobs {

enum class Verdict { kEqual, kNoise, kDifferent };

struct Finding {
  std::string name;  // "a.safetensors and b.safetensors"
  Verdict verdict = Verdict::kEqual;
  int64_t compared = 0;
  std::string dtype;
  double median = 0;  // of |b - a|
  Token largest{};    // the token that differs most; valid when compared > 0
  int64_t above_noise = 0;
  std::string non_finite;     // a fact: how many values are not finite, and where; ""
  std::vector<Claim> claims;  // the best first, then those that are as good
  std::string without_cause;  // what is known of a difference without a cause; ""
  std::string possible;       // the causes that its values cannot tell apart; ""

  int exit_status() const { return verdict == Verdict::kDifferent ? 1 : 0; }
};

Finding compare(const Pair& pair);

std::string describe(const Finding& finding, bool color);  // several lines
std::string to_json(const std::vector<Finding>& findings);

}  // namespace shardproof::sim::logprobs
