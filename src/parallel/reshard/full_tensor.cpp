#include "parallel/reshard/full_tensor.h"

#include <ATen/ATen.h>

#include "tensor/shard.h"

namespace shardproof {

at::Tensor full_tensor(const at::Tensor& piece, const std::vector<int64_t>& global_shape,
                       const Layout& layout, MeshComm& comm, const std::string& label) {
  const at::NoGradGuard no_grad;
  const Mesh& mesh = comm.mesh();
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> sizes;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    shapes.push_back(layout.local_shape(global_shape, mesh, rank));
    sizes.push_back(c10::multiply_integers(shapes.back()));
  }
  const at::Tensor all = comm.world().all_gather(piece.detach().reshape(-1), 0, label, sizes);
  std::vector<at::Tensor> pieces;
  int64_t offset = 0;
  for (size_t rank = 0; rank < sizes.size(); ++rank) {
    pieces.push_back(all.narrow(0, offset, sizes[rank]).view(shapes[rank]));
    offset += sizes[rank];
  }
  return reassemble(pieces, global_shape, layout, mesh);
}

}  // namespace shardproof
