#include "train/router_tokens.h"

#include <ATen/ATen.h>

namespace shardproof {

at::Tensor tokens_of_router(const at::Tensor& token_map, int64_t length, const MeshComm& comm) {
  if (token_map.size(1) == length) return token_map;
  return token_map.narrow(1, comm.mesh().coordinate("tp", comm.rank()) * length, length);
}

std::vector<std::string> axes_of_sequences(const TokenCuts& cuts, const Mesh& mesh) {
  std::vector<std::string> axes = cuts.position_axes(mesh);
  axes.emplace_back("tp");
  return axes;
}

}  // namespace shardproof
