// dropout_regions as a workload: who draws which mask, over tp and dp.
#pragma once

#include "sim/proofs/workload.h"

namespace shardproof::sim {

// Three dropouts, one behind the other: of what tp ranks hold alike, of features that they hold
// parts of, and, with sequence_parallel, of tokens that they hold parts of (without: alike again).
// Then a layer that trains, is evaluated, and trains again.
// Outputs "residual", "features", "tokens", "layer.*", and each one's draws as "draw.<place>".
//
// Options: samples, tokens, width, p, sequence_parallel; tp_ranks and dp_ranks, which must be those
// of the mesh; expert_parallel_ranks (whose streams must have other seeds than tp's); wrong_stream:
// a place ("residual", "features" or "tokens") that draws from the stream of the other kind, as a
// bug would; stray_draw: the process's default generator is drawn from inside a fork, which is a
// warning; rewound: behind "tokens" the streams are set to the states that they had before
// "residual", which is then drawn again ("residual again", behind it the layer goes on from there);
// inference: the tracker is one of inference, which draws nothing; extra_seed: a further stream
// with this seed (-1: none), which no other may have; fork: the layer stands in a fork of this
// name. Sharded: src/random/region_dropout.h, rng_tracker.h. Plain: dealt_streams.h.
Workload dropout_workload();

}  // namespace shardproof::sim
