#include "tests/support/ones.h"

#include <ATen/ATen.h>

namespace shardproof::tests {

at::Tensor ones(int64_t count) { return at::ones({count}, at::kDouble); }

}  // namespace shardproof::tests
