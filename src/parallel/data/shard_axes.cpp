#include "parallel/data/shard_axes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace shardproof {

ShardAxes shard_axes(const Mesh& mesh, const std::vector<std::string>& token_axes,
                     const FsdpOptions& options) {
  const int64_t copies = options.replicate_size, dp = mesh.size("dp");
  if (options.kind == DataParallelKind::kHybrid && (copies < 1 || dp % copies != 0)) {
    throw_refused(
        fmt::format("replicate_size={} does not divide data_parallel_size={}", copies, dp),
        "the copies of a hybrid model lie along dp: choose a divisor of its size");
  }
  std::vector<std::string> axes = token_axes;
  std::erase_if(axes, [&](const std::string& axis) { return mesh.size(axis) == 1; });
  const std::string all = fmt::format("{}", fmt::join(axes, "+"));
  if (all.empty()) return {};
  if (options.kind == DataParallelKind::kReplicate) return {.shard = "", .replicate = all};
  if (options.kind == DataParallelKind::kFsdp) return {.shard = all, .replicate = ""};
  const int64_t ranks = mesh.size(all), block = ranks / copies;
  if (ranks % copies != 0) {
    throw_refused(fmt::format("replicate_size={} does not divide the {} ranks of {}, over which "
                              "some parameters are sharded",
                              copies, ranks, all),
                  "choose a divisor of both numbers");
  }
  if (copies == 1) return {.shard = all, .replicate = ""};
  if (block == 1) return {.shard = "", .replicate = all};
  return {.shard = fmt::format("{}%{}", all, block),
          .replicate = fmt::format("{}//{}", all, block)};
}

}  // namespace shardproof
