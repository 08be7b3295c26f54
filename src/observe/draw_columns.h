// What a row of an observation of random draws holds (observe/draw_log.h).
#pragma once

#include <cstdint>
#include <string_view>

#include "base/seed.h"

namespace shardproof {

enum DrawColumn : int64_t {
  kDrawStream,
  kDrawSeed,
  kDrawOffset,
  kDrawCount,
  kDrawState,
  kDrawColumns
};

// A double holds these bits exactly; the judge reads every tensor as doubles.
inline constexpr uint64_t kExactDrawBits = (uint64_t{1} << 52) - 1;

// The number of a stream in the column, below 2^52; the same in every process.
inline int64_t stream_id(std::string_view stream) {
  return static_cast<int64_t>(stream_seed(0, stream) & kExactDrawBits);
}

}  // namespace shardproof
