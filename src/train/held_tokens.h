// The tokens of the global batch that a rank works on: the batch is split over the sample axes into
// microbatches and cut over the position axes.
//
//   batch [3, 4]      microbatch of dp rank 0, packed     cp = 2, zigzag
//   a b c d           a b c d e f . .                     cp 0   a d | e .
//   e f . .                                               cp 1   b c | f .
//   g h i .
//
// Legend: b rows of a microbatch, T positions of a row.
#pragma once

#include <cstdint>
#include <vector>

#include "train/context_cut.h"
#include "train/trainer.h"

namespace shardproof {

// The microbatches of the ranks that share this rank's samples, in order. Throws as deal_batches
// does.
std::vector<Microbatch> microbatches_of(const Batch& batch, const Mesh& mesh, int64_t rank,
                                        const TokenCuts& cuts, const TrainOptions& options,
                                        Pass pass);
ContextCut context_cut_of(const Microbatch& micro, const Mesh& mesh, int64_t rank,
                          const TokenCuts& cuts);

// The tokens of each microbatch, as a trainer with these options has them, without a model. They
// are equal on all tp ranks; under sequence parallelism norms use a tp rank's share. No
// communication. Throws as deal_batches does.
std::vector<HeldTokens> held_tokens(const Batch& batch, const Mesh& mesh, int64_t rank,
                                    const TokenCuts& cuts, const TrainOptions& options);

}  // namespace shardproof
