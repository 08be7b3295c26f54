// Which tokens a router of this rank sees.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "parallel/style/token_cuts.h"

namespace shardproof {

// [b, s] int64 of a slot's context, which has the tokens of all ranks of tp -> [b, length], those
// of this rank: with sequence parallelism each has a part.
at::Tensor tokens_of_router(const at::Tensor& token_map, int64_t length, const MeshComm& comm);

// The axes whose ranks see parts of the same sequences.
std::vector<std::string> axes_of_sequences(const TokenCuts& cuts, const Mesh& mesh);

}  // namespace shardproof
