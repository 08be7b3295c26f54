// Bytes that a forward keeps for its backward, counted at allocations and frees.
#pragma once

#include <cstdint>

#include "tensor/tensor_memory.h"

namespace shardproof::tests {

// The tensors that `forward` returns stay in `result` and count too.
template <class Forward>
int64_t kept_bytes(const Forward& forward) {
  const TensorMemory memory;
  const auto result = forward();
  return memory.current_bytes();
}

}  // namespace shardproof::tests
