#include "train/held_tokens.h"

namespace shardproof {

std::vector<Microbatch> microbatches_of(const Batch& batch, const Mesh& mesh, int64_t rank,
                                        const TokenCuts& cuts, const TrainOptions& options,
                                        Pass pass) {
  BatchingOptions batching = options.batching;
  batching.micro_batch_size = options.micro_batch_size;
  const int64_t sequence = sequence_multiple(cuts.ring_layout, mesh.size(cuts.ring_axis));
  const int64_t row = context_multiple(mesh, cuts) * cuts.row_multiple;
  return deal_batches(batch, size_of(mesh, cuts.sample_axes),
                      coordinate_of(mesh, cuts.sample_axes, rank), batching,
                      {.sequence_multiple = sequence, .row_multiple = row},
                      pass == Pass::kTraining ? samples_compared(options.loss.kind) : 1,
                      pass == Pass::kTraining ? cuts.fitting_microbatches : nullptr);
}

ContextCut context_cut_of(const Microbatch& micro, const Mesh& mesh, int64_t rank,
                          const TokenCuts& cuts) {
  if (!micro.plan) return {mesh, rank, cuts, micro.input_ids.size(1)};
  return {mesh, rank, cuts, micro.plan->layout(mesh.size(cuts.ring_axis), cuts.ring_layout)};
}

std::vector<HeldTokens> held_tokens(const Batch& batch, const Mesh& mesh, int64_t rank,
                                    const TokenCuts& cuts, const TrainOptions& options) {
  std::vector<HeldTokens> out;
  for (const Microbatch& micro :
       microbatches_of(batch, mesh, rank, cuts, options, Pass::kTraining)) {
    const ContextCut cut = context_cut_of(micro, mesh, rank, cuts);
    out.push_back({.rows = micro.token_map, .held = cut.local(micro.token_map)});
  }
  return out;
}

}  // namespace shardproof
