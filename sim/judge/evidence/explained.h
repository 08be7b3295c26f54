// The share of a difference that a proposal explains, and whether chance could do the same.
#pragma once

#include <cstdint>
#include <string>

namespace shardproof::sim::judge {

// A false explanation is worse than none. A claim must explain at least this share of the squared
// difference, and a random tensor must fit it less than once in a million times. A proposal is
// refuted when the right elements that it makes wrong outnumber the remaining share of the wrong
// ones.
inline constexpr double kLeastExplained = 0.98;
inline constexpr double kChanceNats = 13.8;

// Sums over elements: actual values against golden and against proposed values.
struct Explained {
  double difference = 0;  // sum of (actual - golden)^2, without right elements that are proposed
  double left = 0;        // sum of (actual - proposed)^2, without the same
  int64_t wrong = 0;      // number of wrong elements
  int64_t evidence = 0;   // wrong elements with a proposed value other than 0
  int64_t refuted = 0;    // right elements with another proposed value
  bool exact = true;      // every element is within four allowances of the proposal

  void add(double actual, double golden, double proposed, double allowance);
  void add(const Explained& other);
  // 1 - left / difference; exactly 1 when the share suffices for a claim and the fit is exact. Wide
  // allowances alone explain nothing. Negative when the proposal is worse than the golden, or
  // refuted.
  double share() const;
  // Minus the logarithm of the probability that random values with the golden's root mean square
  // `size` fit equally well.
  double nats(double allowance, double size) const;
  // Whether it may be claimed as one of e^`choice_nats` proposals.
  bool convinces(double allowance, double size, double choice_nats) const;
};

// Minus the logarithm of the probability that one random value comes as near as `left`, or as a
// right value's roundings.
double nats_of_element(double left, double allowance, double size);

// "explains all of the difference", "explains 99.98% of the difference"; "" for a negative share.
std::string explained_text(double share);

}  // namespace shardproof::sim::judge
