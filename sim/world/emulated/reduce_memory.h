// Reductions in CPU memory: the inner loop of the emulated world.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <vector>

#include "comm/communicator.h"

namespace shardproof::sim::world {

// Reduces `inputs` in their order, element by element, into each of `outputs`, which may be inputs.
// collective_math.h has the accumulation types. Throws Error(kRefused) for dtypes without an order.
void reduce_memory(c10::ScalarType dtype, const std::vector<const void*>& inputs,
                   const std::vector<void*>& outputs, int64_t numel, ReduceOp op);

}  // namespace shardproof::sim::world
