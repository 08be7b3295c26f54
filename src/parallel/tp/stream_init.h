// First values of a weight that each tp rank draws for itself (InitFrom::kOwnStream).
//
//   ColumnLinear layer({.init = stream_init(rng, kModelParallelRng, 0.02, "up.weight"),
//                       .init_from = InitFrom::kOwnStream, ..}, tp);
//
// The draw stands in a fork of the named stream, so that the parts of a weight are another draw on
// each tp rank, equal over dp, and no other stream moves. An expert's weight takes
// kExpertParallelRng: its own group's ranks differ by that one.
//
// Source: Megatron-LM layers.py, _initialize_affine_weight_gpu.
#pragma once

#include <string>

#include "parallel/tp/layer_parameter.h"
#include "random/rng_tracker.h"

namespace shardproof {

// Normal values of mean 0, drawn in float64 and rounded to what they fill; told to the tracker's
// log under `place`. `rng` must outlive the method. The method throws what RngTracker::fork and
// RngTracker::normal throw: Error(kBadInput) of a stream that was never added.
InitMethod stream_init(RngTracker& rng, std::string stream, double std_deviation,
                       std::string place);

}  // namespace shardproof
