#include "sim/world/rank/reference_rank.h"

#include <ATen/ATen.h>

#include "model/weights.h"
#include "tensor/shard.h"

namespace shardproof::sim::world {

bool draws_own_shards(const CaseSpec& spec) {
  const bool has_part = spec.reference.is_set() || !spec.reference.folder.empty();
  return has_part && spec.weights_folder.empty();
}

void draw_own_shards(const CaseSpec& spec, const ModelConfig& config, Trainer& trainer,
                     const Mesh& mesh, int64_t rank) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor>& masters = trainer.masters();
  for (size_t i = 0; i < masters.size(); ++i) {
    const Parameter& parameter = *trainer.parameters()[i];
    const at::Tensor full = seeded_weight(config, spec.seed, parameter.name);
    // In place: new tensors between the full ones would leave holes that no full one fits in.
    masters[i].copy_(cut(full, parameter.layout, mesh, rank));
  }
  trainer.restore(masters, trainer.states(), /*step=*/0);  // the leaves follow
}

judge::FullSizes full_sizes(const ModelConfig& config, const Batch& batch) {
  return {.parameters = weight_shapes(config),
          .samples = batch.size(),
          .seq_len = batch.seq_len(),
          .vocab_size = config.vocab_size,
          .intermediate_size = config.intermediate_size};
}

}  // namespace shardproof::sim::world
