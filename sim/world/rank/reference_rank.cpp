#include "sim/world/rank/reference_rank.h"

#include <ATen/ATen.h>

#include "model/weights.h"
#include "tensor/shard.h"

namespace shardproof::sim {

bool draws_own_shards(const CaseSpec& spec) {
  const bool has_part = spec.reference.is_set() || !spec.reference.folder.empty();
  return has_part && spec.weights_folder.empty();
}

void draw_own_shards(const CaseSpec& spec, const ModelConfig& config, Trainer& trainer,
                     const Mesh& mesh, int64_t rank) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> shards;
  for (const ParameterPtr& parameter : trainer.parameters()) {
    const at::Tensor full = seeded_weight(config, spec.seed, parameter->name);
    shards.push_back(cut(full, parameter->layout, mesh, rank));
  }
  trainer.restore(shards, trainer.states(), /*step=*/0);
}

FullSizes full_sizes(const ModelConfig& config, const Batch& batch) {
  return {.parameters = weight_shapes(config),
          .samples = batch.size(),
          .seq_len = batch.seq_len(),
          .vocab_size = config.vocab_size};
}

}  // namespace shardproof::sim
