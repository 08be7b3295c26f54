// Random inputs of workloads: one seed, one stream for each draw.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/physical_memory.h"
#include "base/seed.h"
#include "sim/uses/proofs/workload.h"

namespace shardproof::sim::proofs {
namespace {

// Throws for sizes below 0, and where one input alone would fill half of this machine's memory.
const std::vector<int64_t>& checked_shape(const std::vector<int64_t>& shape) {
  double gib = 8.0 / (1 << 30);  // of one number
  for (const int64_t size : shape) {
    gib *= static_cast<double>(size);
    if (size >= 0) continue;
    throw_bad_input(fmt::format("the options give an input the shape [{}]", fmt::join(shape, ",")),
                    "give sizes of 0 or more");
  }
  if (const double memory = physical_memory_gib(); gib > memory / 2) {
    throw_bad_input(fmt::format("the options give an input the shape [{}], which takes {:.1f} GiB, "
                                "and this machine has {:.1f}",
                                fmt::join(shape, ","), gib, memory),
                    "give smaller sizes");
  }
  return shape;
}

}  // namespace

at::Generator Draw::next() {
  return at::detail::createCPUGenerator(stream_seed(seed_, "draw " + std::to_string(count_++)));
}

at::Tensor Draw::normal(const std::vector<int64_t>& shape) {
  return at::randn(checked_shape(shape), next(), at::TensorOptions().dtype(at::kDouble));
}

at::Tensor Draw::integers(int64_t below, const std::vector<int64_t>& shape) {
  return at::randint(below, checked_shape(shape), next(), at::TensorOptions().dtype(at::kLong));
}

}  // namespace shardproof::sim::proofs
