#include "parallel/data/style.h"

#include "parallel/data/fully_sharded.h"
#include "parallel/data/replicated.h"

namespace shardproof {

void DataParallel::cut_tokens(TokenCuts& cuts, const Mesh&) const {
  cuts.sample_axes.push_back("dp");
}

std::unique_ptr<ParameterStore> DataParallel::store(const StoreSetup& setup) const {
  const ShardAxes axes = shard_axes(setup.comm.mesh(), setup.token_axes, options_);
  if (axes.shard.empty()) return std::make_unique<ReplicatedModel>(setup);
  return std::make_unique<FullyShardedModel>(setup, axes, options_);
}

}  // namespace shardproof
