// Noise on the weights, for tests of what follows weights that changed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "comm/mesh_comm.h"
#include "train/trainer.h"

namespace shardproof {

// Adds normal noise of size `std` to every trainable weight, the master's and so the forward's.
//
// Each full tensor's noise is drawn from the seed and its name, then cut as the weight is: equal
// on all copies, and the same model whatever the mesh. A tied weight is noised once. One full
// tensor of noise is held at a time. No communication.
//
// Source: NeMo-RL dtensor_policy_worker.py, _add_noise_to_weights: there each rank draws for its
// own shard from the process's generator, so that copies part and a mesh's size decides what is
// added.
void add_noise(Trainer& trainer, const MeshComm& comm, double std, int64_t seed);

}  // namespace shardproof
