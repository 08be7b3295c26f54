// Claims that name the wrong tokens and predict no values: the best place of a family. The tokens
// of a row or of a segment are wrong together, so a claim about rows or segments counts as many
// facts as there are of these.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/uses/logprobs/claim.h"

namespace shardproof::sim::logprobs {

inline double log_choose(double n, double k) {
  return std::lgamma(n + 1) - std::lgamma(k + 1) - std::lgamma(n - k + 1);
}

template <class Predicate>
std::vector<char> tokens_where(const Comparison& comparison, const Predicate& predicate) {
  std::vector<char> inside;
  for (const Token& token : comparison.pair.tokens) inside.push_back(predicate(token) ? 1 : 0);
  return inside;
}

// The nats of choosing the units that are inside among all units of tokens; `unit_of` gives a
// token's unit. Infinite when a unit is only partly inside.
template <class UnitOf>
double limit_of_units(const Comparison& comparison, const std::vector<char>& inside,
                      const UnitOf& unit_of) {
  std::map<decltype(unit_of(comparison.pair.tokens[0])), std::pair<bool, bool>> units;
  for (size_t i = 0; i < inside.size(); ++i) {
    auto& [some_in, some_out] = units[unit_of(comparison.pair.tokens[i])];
    (inside[i] != 0 ? some_in : some_out) = true;
  }
  double in = 0;
  for (const auto& [unit, parts] : units) {
    if (parts.first && parts.second) return INFINITY;
    in += parts.first ? 1 : 0;
  }
  return log_choose(static_cast<double>(units.size()), in);
}

inline double limit_of_rows(const Comparison& comparison, const std::vector<char>& inside) {
  return limit_of_units(comparison, inside, [](const Token& token) { return token.row; });
}

// One of many places of a family: the one with most contrast is judged.
class BestPlace {
 public:
  explicit BestPlace(const Comparison& comparison) : comparison_(comparison) {}

  template <class MakeClaim>
  void offer(std::vector<char> inside, const MakeClaim& make_claim) {
    ++tried_;
    const double here = contrast(comparison_, inside);
    if (here <= most_) return;
    most_ = here;
    inside_ = std::move(inside);
    claim_ = make_claim();
  }

  bool found() const { return most_ > 0; }
  const std::vector<char>& inside() const { return inside_; }

  std::optional<Claim> judge(double limit = INFINITY) {
    if (!found()) return std::nullopt;
    if (claim_.description == 0) claim_.description = std::log(std::max(tried_, 1));
    claim_.limit = limit;
    return judge_place(comparison_, inside_, claim_);
  }

 private:
  const Comparison& comparison_;
  double most_ = 0;
  int tried_ = 0;
  std::vector<char> inside_;
  Claim claim_;
};

}  // namespace shardproof::sim::logprobs
