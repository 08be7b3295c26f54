// How much of a difference a proposed explanation accounts for, and whether chance could do as
// well.
#pragma once

#include <cstdint>
#include <string>

namespace shardproof::sim {

// A false explanation is worse than none: less than this share of the squared difference is no
// claim, and neither is what a random tensor would fit once in a million times. Right elements that
// a proposal makes wrong refute it when they are more than the remaining share of the wrong ones.
inline constexpr double kLeastExplained = 0.98;
inline constexpr double kChanceNats = 13.8;

// Sums over elements: the actual values against the golden's, and against what is proposed.
struct Explained {
  double difference = 0;  // sum of (actual - golden)^2
  double left = 0;        // sum of (actual - proposed)^2
  int64_t wrong = 0;      // wrong elements among them
  int64_t evidence = 0;   // wrong elements for which a value other than 0 is proposed
  int64_t refuted = 0;    // right elements for which something else is proposed
  bool exact = true;      // all are within four allowances of what is proposed

  void add(double actual, double golden, double proposed, double allowance);
  void add(const Explained& other);
  // 1 - left / difference; a full 1 when it would be claimed and is exact. Wide allowances alone
  // explain nothing. Negative when the proposal is worse than the golden, or refuted.
  double share() const;
  // Minus the logarithm of the probability that values drawn at random with the golden's root mean
  // square `size` fit as well.
  double nats(double allowance, double size) const;
  // Whether it may be claimed as one of e^`choice_nats` proposals.
  bool convinces(double allowance, double size, double choice_nats) const;
};

// Minus the logarithm of the probability that one such value comes as near as `left`, or as the
// allowance.
double nats_of_element(double left, double allowance, double size);

// "explains all of the difference", "explains 99.98% of the difference"; "" for a negative share.
std::string explained_text(double share);

}  // namespace shardproof::sim
