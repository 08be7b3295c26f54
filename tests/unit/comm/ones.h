// The plainest call of all: ones, summed over a group.
#pragma once

#include <ATen/ATen.h>

#include "comm/communicator.h"

namespace shardproof::tests {

inline at::Tensor ones(int64_t count) { return at::ones({count}, at::kDouble); }

inline void sum(Communicator& group, const char* label, int64_t count = 4) {
  group.all_reduce(ones(count), ReduceOp::kSum, label);
}

}  // namespace shardproof::tests
