// The blocks of a fused dim whose blocks have one size.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace shardproof::sim::proofs {

// `stride` equal blocks of `size`. Throws Error(kRefused), naming the size by `what`, when stride
// does not divide it.
std::vector<int64_t> equal_blocks(int64_t size, int64_t stride, std::string_view what);

}  // namespace shardproof::sim::proofs
