// A count with its noun: "1 file", "3 files".
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>

namespace shardproof {

inline std::string count_of(int64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace shardproof
