#include "observe/draw_columns.h"

#include "base/seed.h"

namespace shardproof {

int64_t stream_id(std::string_view stream) {
  return static_cast<int64_t>(stream_seed(0, stream) & kExactDrawBits);
}

}  // namespace shardproof
