// The colors of verdicts on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace shardproof::sim {

inline std::string painted(std::string_view text, std::string_view code, bool color) {
  if (!color) return std::string(text);
  return "\033[" + std::string(code) + "m" + std::string(text) + "\033[0m";
}

constexpr std::string_view kGreen = "32", kRed = "31;1", kYellow = "33", kDim = "2";

}  // namespace shardproof::sim
