// The colors of verdicts on a terminal.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>

namespace shardproof::sim::report {

// Whether standard output is a terminal whose user wants colors (https://no-color.org).
inline bool wants_color() {
  const char* no_color = std::getenv("NO_COLOR");
  return ::isatty(STDOUT_FILENO) != 0 && (no_color == nullptr || *no_color == '\0');
}

inline std::string painted(std::string_view text, std::string_view code, bool color) {
  if (!color) return std::string(text);
  return "\033[" + std::string(code) + "m" + std::string(text) + "\033[0m";
}

constexpr std::string_view kGreen = "32", kRed = "31;1", kYellow = "33", kDim = "2";

}  // namespace shardproof::sim::report
