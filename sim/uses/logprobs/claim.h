// A cause proposed for the difference of two files of logprobs, and when it may be claimed.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/description_length.h"
#include "sim/uses/logprobs/pair.h"
#include "sim/uses/logprobs/throughout.h"

namespace shardproof::sim::logprobs {

// A claim is made only if chance would fit as well in less than one of 1000 files.
inline const double kChanceNats = std::log(1000.0);
inline constexpr double kLeastShare = 0.9;  // of the squared difference, else noise must remain

struct Claim {
  std::string cause;        // "shift"; the name in JSON
  std::string text;         // "b[t] is a[t + 1] in each row"
  std::string likely = "";  // usual reason, or the fix
  // The logarithm of the number of alternatives, plus kFreeNumber for each real number.
  double description = 0;
  double gained = 0;  // nats
  // The most nats that the independent units (rows, segments) behind the claim can give: tokens of
  // one row are wrong together.
  double limit = INFINITY;
  double share = 0;           // of the squared difference
  bool leaves_noise = false;  // what remains is noise of the dtype
  int64_t unsaid = 0;         // tokens of which a prediction says nothing
  // Of a claim that says where, not what the values are.
  std::optional<PlaceCounts> place = std::nullopt;
  // Each row or segment has tokens inside and outside by the claim's definition, so that a place
  // that holds nearly all tokens says something, too.
  bool splits_each_unit = false;
  bool grows_at_first = false;     // the difference may grow over the first tokens inside
  bool grows_behind = false;       // a step from a flat difference, which may grow behind it
  bool is_fitted = false;          // a number of it follows from the values
  bool named_by_metadata = false;  // the metadata has the numbers of the claim
  std::string listed = "";         // what is possible instead: then nothing is claimed

  double score() const { return gained - description; }
  double chance_nats() const { return std::min(gained, limit) - description; }
};

// Whether it explains enough, and chance would not.
bool may_be_claimed(const Claim& claim);

// Keeps the claim with the higher score, of equal ones the first.
inline void keep_better(std::optional<Claim>& best, std::optional<Claim> claim) {
  if (claim && (!best || claim->score() > best->score())) best = std::move(claim);
}

// The size of noise of a dtype with this eps, relative to a weight. A sum of K products that is
// rounded in a half precision alone has 1 rounding, one that is summed in the dtype itself about
// sqrt(K).
double noise_of(double epsilon);
inline constexpr double kEpsilonOfBfloat16 = 0x1p-7;

// What all proposals compare with: the differences without a cause.
struct Comparison {
  explicit Comparison(const Pair& pair);

  const Pair& pair;
  std::vector<double> weights;      // of each token: 1 + the smaller |logprob|
  std::vector<double> differences;  // b - a
  double squared = 0;               // sum of their squares
  double noise;                     // noise_of() the pair
  double floor;                     // of a scale that is fitted
  double nats;                      // cost of the differences without a cause

  // Whether such remaining differences (NaN: not this token) are noise of the dtype: the mean of
  // their sizes is at most 2 `noise`, and none exceeds 16.
  bool is_noise(const std::vector<double>& remaining) const { return is_noise(remaining, noise); }
  bool is_noise(const std::vector<double>& remaining, double noise_of_dtype) const;
  double size_of(double difference, size_t token) const {
    return std::abs(difference) / weights[token];
  }
  bool is_above_noise(size_t token) const;  // by its difference without a cause
  int64_t count_above_noise() const;
};

inline constexpr double kMostNoise = 16, kMeanNoise = 2;

// Judges a claim that predicts b (NaN: it says nothing of this token), or a if it is `turned`. A
// number that is fitted fits one token always: it needs 4 that differ.
std::optional<Claim> judge_prediction(const Comparison& comparison,
                                      const std::vector<double>& predicted, Claim claim,
                                      bool turned = false);
// Judges a claim that the tokens `inside` are wrong throughout and the others right (throughout.h).
std::optional<Claim> judge_place(const Comparison& comparison, const std::vector<char>& inside,
                                 Claim claim);
// The sizes of the differences outside of a place, [0], and inside, [1].
struct Contrast {
  double sums[2] = {}, counts[2] = {};
  void add(bool inside, double sum, double count) {
    sums[inside] += sum;
    counts[inside] += count;
  }
  // What telling the sides apart gains, where each has sizes of its own scale; 0 when the tokens
  // inside differ less than the others.
  double nats(double floor) const;
};

// A quick estimate of what judge_place() would gain, to choose among many places.
double contrast(const Comparison& comparison, const std::vector<char>& inside);

// How many nats differences cost when nothing explains them.
//
// The size x of a difference, relative to its weight, is coded by a mixture of two exponential
// densities: the tokens that are right have differences of the scale `small`, the wrong ones of the
// scale `large`. Tokens are in classes, and each class has its own share of wrong tokens:
//
//   nats = -sum over tokens of log((1 - wrong[c]) exp(-x / small) / small
//                                  + wrong[c] exp(-x / large) / large)
struct Mixture {
  double small, large;
  std::vector<double> wrong;  // of each class
  double nats = 0;
};

// Fits the mixture from several starts and returns the shortest. `classes` may be empty: all
// tokens are in one class. No scale is below `floor`.
Mixture fit_mixture(const std::vector<double>& sizes, const std::vector<char>& classes,
                    double floor);

}  // namespace shardproof::sim::logprobs
