#include "sim/world/rank/fsdp_options.h"

namespace shardproof::sim::world {

FsdpOptions fsdp_options(const ParallelSpec& spec) {
  return {.kind = spec.data_parallel,
          .replicate_size = spec.fsdp.replicate_size,
          .reshard_after_forward = spec.fsdp.reshard_after_forward,
          .prefetch = spec.fsdp.prefetch,
          .reduce_each_microbatch = spec.fsdp.reduce_each_microbatch,
          .cpu_offload = spec.fsdp.cpu_offload,
          .gradients = spec.gradients};
}

ShardAxes shard_axes_of(const ParallelSpec& spec) {
  std::vector<std::string> token_axes;
  for (const auto& axis : kTrainingAxes) {
    if (axis.share != Share::kModel) token_axes.emplace_back(axis.name);
  }
  return shard_axes(spec.mesh(), token_axes, fsdp_options(spec));
}

}  // namespace shardproof::sim::world
