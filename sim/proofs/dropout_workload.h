// Workload dropout_regions: which rank draws which mask, over tp and dp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Three dropouts in sequence: of a tensor that tp ranks hold equally, of features cut over tp, and
// of tokens, cut over tp with sequence_parallel and else held equally. Then a layer trains, is
// evaluated, and trains again. Outputs: "residual", "features", "tokens", "layer.*", and the draws
// of each as "draw.<place>". Sharded: src/random/region_dropout.h, rng_tracker.h. Plain:
// dealt_streams.h.
//
//   tp_ranks, dp_ranks      those of the mesh
//   expert_parallel_ranks   their streams have other seeds than those of tp
//   wrong_stream            a place ("residual", "features" or "tokens") that draws from the stream
//                           of the other kind, as with a bug
//   stray_draw              draws from the process's default generator in a fork: a warning
//   rewound                 sets the streams back after "tokens" and draws "residual again"; the
//                           layer continues from there
//   inference               the tracker is one of inference, which draws nothing
//   extra_seed              adds a stream with this seed, which no other may have (-1: none)
//   fork                    the layer runs in a fork of this name
//   samples, tokens, width, p, sequence_parallel
Workload dropout_workload();

}  // namespace shardproof::sim
