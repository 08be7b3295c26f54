#include "parallel/tp/stream_init.h"

#include <ATen/ATen.h>

namespace shardproof {

at::Tensor drawn_in_stream(RngTracker& rng, const std::string& stream, at::IntArrayRef shape,
                           double std_deviation, const std::string& place) {
  const auto region = rng.fork(stream);
  return rng.normal(shape, place).mul_(std_deviation);
}

}  // namespace shardproof
