// Collects, on one rank alone, a full tensor of which every rank of a mesh holds a piece.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "mesh/layout.h"

namespace shardproof {

struct HeldTensor {
  std::string key;
  at::Tensor piece;  // this rank's cut of the full tensor; may have no elements
  std::vector<int64_t> global_shape;
  Layout layout;
};

// Collects the full tensor on the mesh's rank 0, one piece at a time. The lowest rank sends each of
// several equal copies.
//
//   full      [global_shape] on rank 0, where it is written; undefined elsewhere. It has the
//             dtype `dtype`, the same on every rank, to which each rank casts its own piece
//   device    where the communicator moves tensors
//
// Forward   a send to rank 0 from each other rank that is the first to hold its piece
void collect_into(const at::Tensor& full, const HeldTensor& held, at::ScalarType dtype,
                  at::Device device, MeshComm& comm, const std::string& label);

}  // namespace shardproof
