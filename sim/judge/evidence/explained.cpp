#include "sim/judge/evidence/explained.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shardproof::sim::judge {

void Explained::add(double actual, double golden, double proposed, double allowance) {
  const bool fits = std::fabs(actual - proposed) <= 4 * allowance || actual == proposed;
  const bool is_right = std::fabs(actual - golden) <= allowance;
  exact = exact && fits;
  refuted += is_right && !fits;
  if (is_right && proposed == golden) return;  // says nothing, and has roundings of its own
  difference += (actual - golden) * (actual - golden);
  left += (actual - proposed) * (actual - proposed);
  if (is_right) return;
  ++wrong;
  if (std::fabs(proposed) > allowance) ++evidence;
}

void Explained::add(const Explained& other) {
  difference += other.difference;
  left += other.left;
  wrong += other.wrong;
  evidence += other.evidence;
  refuted += other.refuted;
  exact = exact && other.exact;
}

double Explained::share() const {
  if (wrong == 0 || !(difference > 0)) return -1;
  if (static_cast<double>(refuted) > (1 - kLeastExplained) * static_cast<double>(wrong)) return -1;
  const double share = 1 - left / difference;
  return exact && share >= kLeastExplained ? 1 : share;
}

double Explained::nats(double allowance, double size) const {
  const double mean = left / static_cast<double>(std::max<int64_t>(wrong, 1));
  return nats_of_element(std::sqrt(mean), allowance, size) * static_cast<double>(evidence);
}

bool Explained::convinces(double allowance, double size, double choice_nats) const {
  return share() >= kLeastExplained && nats(allowance, size) >= choice_nats + kChanceNats;
}

double nats_of_element(double left, double allowance, double size) {
  if (!(size > 0)) return 0;
  // Chance fits with a probability of about the remaining error over the size. The roundings of
  // right values are a small part of the allowance, on average.
  const double chance = std::max(allowance / 16, 2 * left) / size;
  return chance < 1 ? -std::log(std::max(chance, 1e-15)) : 0;
}

std::string explained_text(double share) {
  if (!(share >= 0)) return "";
  if (share >= 1) return "explains all of the difference";
  return fmt::format("explains {:.2f}% of the difference", std::floor(share * 1e4) / 1e2);
}

}  // namespace shardproof::sim::judge
