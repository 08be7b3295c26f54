#include "train/held_tokens.h"

#include <ATen/ATen.h>

namespace shardproof {

std::vector<Microbatch> microbatches_of(const Batch& batch, const Mesh& mesh, int64_t rank,
                                        const TrainOptions& options, Pass pass) {
  BatchingOptions batching = options.batching;
  batching.micro_batch_size = options.micro_batch_size;
  const int64_t sequence = sequence_multiple(options.context_layout, mesh.size("cp"));
  const int64_t row = context_multiple(mesh, options.context_layout) *
                      (options.sequence_parallel ? mesh.size("tp") : 1);
  return deal_batches(batch, mesh.size("dp"), mesh.coordinate("dp", rank), batching,
                      {.sequence_multiple = sequence, .row_multiple = row},
                      pass == Pass::kTraining ? samples_compared(options.loss.kind) : 1);
}

ContextCut context_cut_of(const Microbatch& micro, const Mesh& mesh, int64_t rank,
                          const TrainOptions& options) {
  if (!micro.plan) return {mesh, rank, micro.input_ids.size(1), options.context_layout};
  return {mesh, rank, micro.plan->layout(mesh.size("cp"), options.context_layout)};
}

std::vector<HeldTokens> held_tokens(const Batch& batch, const Mesh& mesh, int64_t rank,
                                    const TrainOptions& options) {
  std::vector<HeldTokens> out;
  for (const Microbatch& micro : microbatches_of(batch, mesh, rank, options, Pass::kTraining)) {
    const ContextCut cut = context_cut_of(micro, mesh, rank, options);
    out.push_back({.rows = micro.token_map, .held = cut.local(micro.token_map)});
  }
  return out;
}

}  // namespace shardproof
