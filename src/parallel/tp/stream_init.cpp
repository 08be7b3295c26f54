#include "parallel/tp/stream_init.h"

#include <ATen/ATen.h>

namespace shardproof {

InitMethod stream_init(RngTracker& rng, std::string stream, double std_deviation,
                       std::string place) {
  return [&rng, stream = std::move(stream), std_deviation,
          place = std::move(place)](const at::Tensor& values) {
    const auto region = rng.fork(stream);
    at::Tensor(values).copy_(rng.normal(values.sizes(), place).mul_(std_deviation));
  };
}

}  // namespace shardproof
