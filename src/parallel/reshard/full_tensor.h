// Gathers a full tensor of which every rank holds a piece.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "mesh/layout.h"

namespace shardproof {

//   piece     this rank's cut of the full tensor; may have no elements
//   returns   [global_shape] on every rank, on the piece's device
//
// Forward   all_gather over the world of all pieces, including copies
at::Tensor full_tensor(const at::Tensor& piece, const std::vector<int64_t>& global_shape,
                       const Layout& layout, MeshComm& comm, const std::string& label);

}  // namespace shardproof
