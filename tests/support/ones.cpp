#include "tests/support/ones.h"

#include <ATen/ATen.h>

namespace shardproof::tests {

at::Tensor ones(int64_t count) { return at::ones({count}, at::kDouble); }

void sum(Communicator& group, const char* label, int64_t count) {
  group.all_reduce(ones(count), ReduceOp::kSum, label);
}

}  // namespace shardproof::tests
