// First values of a weight that each tp rank draws for itself, so that they depend on tp. (A plan's
// layers cut one master instead, which is the same for every tp size.)
//
// Source: Megatron-LM layers.py, _initialize_affine_weight_gpu.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "random/rng_tracker.h"

namespace shardproof {

// This rank's part of a weight, [shape] in float64: normal values of mean 0, drawn in a fork of the
// named stream and told to the tracker's log under `place`. The parts are another draw on each tp
// rank, equal over dp, and no other stream moves. An expert's weight takes kExpertParallelRng: its
// own group's ranks differ by that one.
//
// Throws what RngTracker::fork and RngTracker::normal throw: Error(kBadInput) of a stream that was
// never added.
at::Tensor drawn_in_stream(RngTracker& rng, const std::string& stream, at::IntArrayRef shape,
                           double std_deviation, const std::string& place);

}  // namespace shardproof
