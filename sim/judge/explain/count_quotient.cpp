#include "sim/judge/explain/count_quotient.h"

#include <fmt/format.h>

#include <cmath>

namespace shardproof::sim::judge {
namespace {

// Counts up to kLargestCount, or neighbors up to kLargestNeighbor.
constexpr int64_t kLargestCount = 64, kLargestNeighbor = 4096;

}  // namespace

std::optional<Counts> quotient_of(double factor) {
  const auto fits = [&](int64_t due, int64_t taken) {
    const double quotient = static_cast<double>(due) / static_cast<double>(taken);
    return due != taken && std::fabs(factor - quotient) <= kOfCounts * quotient;
  };
  for (int64_t taken = 1; taken <= kLargestNeighbor; ++taken) {
    const double due = std::round(factor * static_cast<double>(taken));
    if (!(due > 0 && due <= static_cast<double>(kLargestNeighbor) + 1)) continue;
    const Counts counts{static_cast<int64_t>(due), taken};
    const bool are_small = counts.due <= kLargestCount && taken <= kLargestCount;
    const bool are_neighbors = std::abs(counts.due - taken) == 1;
    const bool is_whole = counts.due == 1 || taken == 1;
    if ((are_small || are_neighbors || is_whole) && fits(counts.due, taken)) return counts;
  }
  return std::nullopt;
}

std::string words_for(const Counts& counts) {
  const char* const which = "a count of tokens, rows or microbatches that is not the reference's";
  if (counts.taken == 1) {
    return fmt::format("not divided by {}, or divided by a number that is {} times too small: {}",
                       counts.due, counts.due, which);
  }
  if (counts.due == 1) {
    return fmt::format(
        "divided by {} once too often, or by a number that is {} times too large: {}", counts.taken,
        counts.taken, which);
  }
  const int64_t more = counts.taken - counts.due;
  std::string text = fmt::format("divided by {} where {} are due, or by multiples of both: {}",
                                 counts.taken, counts.due, which);
  if (more == 1) {
    text += fmt::format("; one in {} is too many, as where a position of each row predicts nothing",
                        counts.taken);
  }
  return text;
}

}  // namespace shardproof::sim::judge
