// Factors that are quotients of small counts, as of tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace shardproof::sim::judge {

// Quotients of counts lie further apart than this relative distance.
constexpr double kOfCounts = 1e-11;

// Two counts whose quotient the factor is: `due` tokens, rows or microbatches were divided by
// `taken`.
struct Counts {
  int64_t due = 0, taken = 0;
};

// The smallest two counts, when they are small or neighbors, or when one of them is 1.
std::optional<Counts> quotient_of(double factor);
std::string words_for(const Counts& counts);

}  // namespace shardproof::sim::judge
