// The simplest tensor of a call.
#pragma once

#include "comm/communicator.h"

namespace shardproof::tests {

at::Tensor ones(int64_t count);  // [count] float64

}  // namespace shardproof::tests
