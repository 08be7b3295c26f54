#include "parallel/data/shard_axes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace shardproof {

std::vector<std::string> data_axes(const Mesh& mesh) {
  std::vector<std::string> axes;
  for (const char* axis : {"dp", "cp", "ulysses"}) {
    if (mesh.size(axis) > 1) axes.push_back(axis);
  }
  return axes;
}

ShardAxes shard_axes(const Mesh& mesh, const FsdpOptions& options) {
  const int64_t copies = options.replicate_size, dp = mesh.size("dp");
  if (options.kind == DataParallelKind::kHybrid && (copies < 1 || dp % copies != 0)) {
    throw Error(
        {.kind = ErrorKind::kRefused,
         .what = fmt::format("replicate_size={} does not divide data_parallel_size={}", copies, dp),
         .fix = "the copies of a hybrid model lie along dp: choose a divisor of its size"});
  }
  const std::string all = fmt::format("{}", fmt::join(data_axes(mesh), "+"));
  if (all.empty()) return {};
  if (options.kind == DataParallelKind::kReplicate) return {.shard = "", .replicate = all};
  if (options.kind == DataParallelKind::kFsdp) return {.shard = all, .replicate = ""};
  const int64_t ranks = mesh.size(all), block = ranks / copies;
  if (copies == 1) return {.shard = all, .replicate = ""};
  if (block == 1) return {.shard = "", .replicate = all};
  return {.shard = fmt::format("{}%{}", all, block),
          .replicate = fmt::format("{}//{}", all, block)};
}

}  // namespace shardproof
