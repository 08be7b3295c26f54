// The simplest call: ones, summed over a group.
#pragma once

#include "comm/communicator.h"

namespace shardproof::tests {

at::Tensor ones(int64_t count);  // [count] float64
void sum(Communicator& group, const char* label, int64_t count = 4);

}  // namespace shardproof::tests
