#include "parallel/data/style.h"

#include <fmt/format.h>

#include "base/error.h"
#include "parallel/data/fully_sharded.h"
#include "parallel/data/replicated.h"

namespace shardproof {

void check_main_gradients(const FsdpOptions& options, const ShardAxes& axes, const Mesh& mesh,
                          at::ScalarType dtype) {
  if (options.gradients != GradientPlace::kMain) return;
  if (!axes.shard.empty()) {
    throw_refused(
        fmt::format("run.gradients is main, which adds up gradients of whole weights, but {} ranks "
                    "hold shards of each",
                    mesh.size(axes.shard)),
        "set parallel.data_parallel: replicate, or run.gradients: autograd");
  }
  // A step whose gradients overflow is skipped. The wider sums overflow in other steps.
  if (dtype == at::kHalf) {
    throw_refused(
        "run.gradients is main, whose float32 sums do not overflow where float16 gradients do",
        "choose another precision, or run.gradients: autograd");
  }
}

void DataParallel::place(Decoder& model, const Mesh& mesh) const {
  for (const ParameterPtr& parameter : model.parameters()) {
    if (parameter->rule.mean_over) shard_axes(mesh, *parameter->rule.mean_over, options_);
  }
}

void DataParallel::cut_tokens(TokenCuts& cuts, const Mesh&) const {
  cuts.sample_axes.push_back("dp");
}

std::unique_ptr<ParameterStore> DataParallel::store(const StoreSetup& setup) const {
  const ShardAxes axes = shard_axes(setup.comm.mesh(), setup.token_axes, options_);
  check_main_gradients(options_, axes, setup.comm.mesh(), setup.dtype);
  if (axes.shard.empty()) return std::make_unique<ReplicatedModel>(setup, options_.gradients);
  return std::make_unique<FullyShardedModel>(setup, options_);
}

}  // namespace shardproof
