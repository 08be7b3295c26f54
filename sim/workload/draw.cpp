// Draws from one seed, a stream for each.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include "base/seed.h"
#include "sim/workload/workload.h"

namespace shardproof::sim {

at::Generator Draw::next() {
  return at::detail::createCPUGenerator(stream_seed(seed_, "draw " + std::to_string(count_++)));
}

at::Tensor Draw::normal(const std::vector<int64_t>& shape) {
  return at::randn(shape, next(), at::TensorOptions().dtype(at::kDouble));
}

at::Tensor Draw::integers(int64_t below, const std::vector<int64_t>& shape) {
  return at::randint(below, shape, next(), at::TensorOptions().dtype(at::kLong));
}

}  // namespace shardproof::sim
