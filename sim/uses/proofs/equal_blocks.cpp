#include "sim/uses/proofs/equal_blocks.h"

#include <fmt/format.h>

#include "base/error.h"

namespace shardproof::sim::proofs {

std::vector<int64_t> equal_blocks(int64_t size, int64_t stride, std::string_view what) {
  if (stride < 1 || size % stride != 0) {
    throw_refused(
        fmt::format("{} {} does not split into stride={} equal blocks", what, size, stride),
        "choose a stride that divides it");
  }
  return std::vector<int64_t>(static_cast<size_t>(stride), size / stride);
}

}  // namespace shardproof::sim::proofs
