// A layer that draws its own weight on ranks of a world, and what it saves there.
#pragma once

#include "comm/mesh_comm.h"
#include "random/rng_tracker.h"
#include "sim/proofs/layer_parameter_options.h"

namespace shardproof::sim {

// `spec` on `tp`, its weight drawn as the options say; draws of streams go through `rng`.
TpLayer drawn_layer(const LayerParameterOptions& options, const TpLayerSpec& spec, Communicator& tp,
                    RngTracker& rng);

// Of the layer that is saved, and of the one that loads it.
StateKey saved_key(const LayerParameterOptions& options, int64_t data_parallel_rank);

// What all ranks saved, and how many elements of each parameter this rank is the one to write.
struct SavedLayer {
  ShardedState state;
  int64_t of_weight = 0, of_bias = 0;
};

// The ranks of `comm` as dp x tp = saved_tp, drawing the layer in `dtype` and saving it.
// Communication: a group of its own is made, then two all_gathers over the world.
SavedLayer saved_layer(const LayerParameterOptions& options, at::ScalarType dtype, MeshComm& comm,
                       RngTracker& rng);

}  // namespace shardproof::sim
