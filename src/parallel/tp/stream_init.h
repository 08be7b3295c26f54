// First values of weights that each tp rank draws separately, so that they depend on tp. (Otherwise
// the layers of a plan cut one master weight, which is the same for every tp size.)
//
// Source: Megatron-LM layers.py, _initialize_affine_weight_gpu.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "mesh/mesh.h"
#include "model/decoder.h"
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

// Gives each matrix of the model, in forward order, this rank's draw from the model-parallel stream
// of `seed`, with a standard deviation of in_features^-0.5. The rest of the full tensor is NaN on
// this rank. Rows of a padded vocabulary are drawn too, and dropped. Vectors keep their values.
// Call it after the plan is placed and before anything else cuts the parameters. No communication.
//
// Throws Error(kRefused) when several ranks of tp hold the same matrix, or the same part of it:
// each would draw other values.
void draw_own_parts(const Decoder& model, const Mesh& mesh, int64_t rank, int64_t seed);

}  // namespace shardproof
