// Compares two files of logprobs and names the cause of their difference.
#pragma once

#include <string>
#include <vector>

#include "sim/uses/logprobs/claim.h"

namespace shardproof::sim::logprobs {

enum class Verdict { kEqual, kNoise, kDifferent, kNotCompared };

struct Finding {
  std::string name;  // "a.safetensors and b.safetensors"
  Verdict verdict = Verdict::kEqual;
  int64_t compared = 0;
  std::string dtype = {};
  double median = 0;  // of |b - a|
  Token largest{};    // the token that differs most; valid when compared > 0
  int64_t above_noise = 0;
  // The first wrong token in the order of the rows, the lowest position of any wrong token, and the
  // size above which a token is wrong: noise cannot give it, or, where no token is so far off, that
  // of the claimed place.
  std::optional<Token> first = std::nullopt;
  int64_t lowest_position = -1;
  double wrong_above = 0;
  std::optional<Routes> routes = std::nullopt;
  std::optional<RouteSplit> split = std::nullopt;  // where routes differ
  std::string values = {};         // a fact: one file holds no logprobs, but other values; ""
  std::string non_finite = {};     // a fact: how many values are not finite, and where; ""
  std::string left_out = {};       // a fact: how many values are -infinity in both; ""
  std::vector<Claim> claims = {};  // the best first, then those that are as good
  std::string without_cause = {};  // what is known of a difference without a cause; ""
  std::string possible = {};       // the causes that its values cannot tell apart; ""
  std::string unread = {};         // tensors of the files that have no known name; ""
  std::string problem = {};        // of files that cannot be compared: why; "" for others

  int exit_status() const {
    if (verdict == Verdict::kNotCompared) return 2;
    return verdict == Verdict::kDifferent ? 1 : 0;
  }
};

Finding compare(const Pair& pair);

std::string describe(const Finding& finding, bool color);  // several lines
std::string to_json(const std::vector<Finding>& findings);

}  // namespace shardproof::sim::logprobs
