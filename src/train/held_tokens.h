// Which tokens of the global batch a rank works on: the batch dealt over dp, laid out in
// microbatches, cut over cp and ulysses.
//
//   batch [3, 4]      microbatch of dp rank 0, packed     cp = 2, zigzag
//   a b c d           a b c d e f . .                     cp 0   a d | e .
//   e f . .                                               cp 1   b c | f .
//   g h i .
//
// Legend: b rows of a microbatch, T positions of a row.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "train/context_cut.h"
#include "train/trainer.h"

namespace shardproof {

// What the rank's dp group goes through, one after another. Throws as deal_batches. In training the
// samples that the loss compares stay together; in scoring each stands for itself.
enum class Pass { kScoring, kTraining };
std::vector<Microbatch> microbatches_of(const Batch& batch, const Mesh& mesh, int64_t rank,
                                        const TrainOptions& options, Pass pass);
// How the ranks of cp and ulysses cut a microbatch's rows.
ContextCut context_cut_of(const Microbatch& micro, const Mesh& mesh, int64_t rank,
                          const TrainOptions& options);

// One per microbatch, equal on all ranks of tp; under sequence parallelism norms work on a tp
// rank's share of it. What a trainer of these options trains on, without a model. No
// communication. Throws as deal_batches.
std::vector<HeldTokens> held_tokens(const Batch& batch, const Mesh& mesh, int64_t rank,
                                    const TrainOptions& options);

}  // namespace shardproof
