// First values of a weight that each tp rank draws separately, so that they depend on tp. (The
// layers of a plan cut one master weight, which is the same for every tp size.)
//
// Source: Megatron-LM layers.py, _initialize_affine_weight_gpu.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "random/rng_tracker.h"

namespace shardproof {

// Returns this rank's part of a weight, [shape] in float64: normal values of mean 0, drawn in a
// fork of the named stream and recorded in the tracker's log under `place`. The parts differ
// between tp ranks and are equal over dp; no other stream advances. For an expert's weight, pass
// kExpertParallelRng, which differs between the ranks of its group.
//
// Throws Error(kBadInput) when the stream was never added (RngTracker::fork).
at::Tensor drawn_in_stream(RngTracker& rng, const std::string& stream, at::IntArrayRef shape,
                           double std_deviation, const std::string& place);

}  // namespace shardproof
