// Random inputs of workloads: one seed, one stream for each draw.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "base/seed.h"
#include "sim/uses/proofs/workload.h"

namespace shardproof::sim::proofs {
namespace {

const std::vector<int64_t>& checked_shape(const std::vector<int64_t>& shape) {
  for (const int64_t size : shape) {
    if (size >= 0) continue;
    throw_bad_input(fmt::format("the options give an input the shape [{}]", fmt::join(shape, ",")),
                    "give sizes of 0 or more");
  }
  return shape;
}

}  // namespace

void require_positive(const Options& options, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (options.at(name).get<double>() > 0) continue;
    throw_bad_input(fmt::format("option {} is {}", name, options.at(name).dump()),
                    "give one above 0");
  }
}

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
