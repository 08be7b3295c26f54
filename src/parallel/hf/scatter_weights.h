// Sends every rank its shards of weights that only world rank 0 has read.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/mesh_comm.h"
#include "model/slot.h"
#include "model/weights.h"

namespace shardproof {

//   parameters   with the layouts from plan and data parallelism, the same on every rank
//   full         on world rank 0 the full weights by name; null elsewhere
//   device       where the communicator moves tensors
//   returns      one per parameter, in order: this rank's piece on CPU, in the stored dtype
//
// Each rank receives only what it holds. Rank 0 makes one piece at a time.
//
// Forward   broadcast of the dtypes over the world; per parameter a send from rank 0 to each other
//           rank whose piece has elements, labeled "load <name>"
// Golden    cut() of the full weights
std::vector<at::Tensor> scatter_weights(const std::vector<ParameterPtr>& parameters,
                                        const WeightMap* full, MeshComm& comm,
                                        at::Device device = at::kCPU);

}  // namespace shardproof
