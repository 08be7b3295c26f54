// Bytes that a forward leaves behind for its backward, counted as memory is taken and given back.
#pragma once

#include <cstdint>

#include "sim/world/rank/tensor_memory.h"

namespace shardproof::tests {

// What `forward` returns stays alive in `result`, and is counted too.
template <class Forward>
int64_t kept_bytes(const Forward& forward) {
  const sim::TensorMemory memory;
  const auto result = forward();
  return memory.current_bytes();
}

}  // namespace shardproof::tests
