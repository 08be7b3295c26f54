// The blocks of a fused dim that all have one size.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace shardproof::sim {

// `stride` equal blocks of `size`. Throws Error(kRefused) where stride does not divide it; `what`
// names the size.
std::vector<int64_t> equal_blocks(int64_t size, int64_t stride, std::string_view what);

}  // namespace shardproof::sim
