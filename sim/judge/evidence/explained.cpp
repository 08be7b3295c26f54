#include "sim/judge/evidence/explained.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace shardproof::sim {

void Explained::add(double actual, double golden, double proposed, double allowance) {
  difference += (actual - golden) * (actual - golden);
  left += (actual - proposed) * (actual - proposed);
  exact = exact && (std::fabs(actual - proposed) <= 4 * allowance || actual == proposed);
  if (std::fabs(actual - golden) <= allowance) return;
  ++wrong;
  if (std::fabs(proposed) > allowance) ++evidence;
}

void Explained::add(const Explained& other) {
  difference += other.difference;
  left += other.left;
  wrong += other.wrong;
  evidence += other.evidence;
  exact = exact && other.exact;
}

double Explained::share() const {
  if (wrong == 0 || !(difference > 0)) return -1;
  const double share = 1 - left / difference;
  return exact && share >= kLeastExplained ? 1 : share;
}

double Explained::nats(double allowance, double size) const {
  if (evidence == 0 || !(size > 0)) return 0;
  // An element fits by chance with about the ratio of what may be left to its size.
  const double left_per_element =
      std::sqrt(left / static_cast<double>(std::max<int64_t>(wrong, 1)));
  const double chance = std::max(8 * allowance, 2 * left_per_element) / (2 * size);
  return chance < 1 ? -std::log(std::max(chance, 1e-15)) * static_cast<double>(evidence) : 0;
}

bool Explained::convinces(double allowance, double size, double choice_nats) const {
  return share() >= kLeastExplained && nats(allowance, size) >= choice_nats + kChanceNats;
}

std::string explained_text(double share) {
  if (!(share >= 0)) return "";
  if (share >= 1) return "explains all of the difference";
  return fmt::format("explains {:.2f}% of the difference", std::floor(share * 1e4) / 1e2);
}

}  // namespace shardproof::sim
