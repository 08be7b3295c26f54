// Counts and ranks with their noun: "1 file", "3 files", "rank 1", "ranks 0, 2".
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace shardproof {

inline std::string count_of(int64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

template <class Ranks>
std::string ranks_text(const Ranks& ranks) {
  std::string text;
  for (const auto rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  return (ranks.size() > 1 ? "ranks " : "rank ") + text;
}

}  // namespace shardproof
