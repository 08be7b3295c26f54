// Adds noise to the weights, for tests of code that uses changed weights.
#pragma once

#include <cstdint>

#include "comm/mesh_comm.h"
#include "train/trainer.h"

namespace shardproof {

// Adds normal noise of size `std` to every trainable weight: to the master, and so to the forward.
//
// Each full tensor's noise is drawn from the seed and its name, then cut like the weight. So all
// copies are equal, and the model does not depend on the mesh. A tied weight gets noise once. One
// full tensor of noise is held at a time. No communication.
//
// Source: NeMo-RL dtensor_policy_worker.py, _add_noise_to_weights. There each rank draws for its
// own shard from the process's generator, so that copies diverge and the noise depends on the
// mesh's size.
void add_noise(Trainer& trainer, const MeshComm& comm, double std, int64_t seed);

}  // namespace shardproof
