#include "parallel/reshard/held_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "tensor/shard.h"

namespace shardproof {
namespace {

constexpr int64_t kCollector = 0;

}  // namespace

void collect_into(const at::Tensor& full, const HeldTensor& held, at::ScalarType dtype,
                  at::Device device, MeshComm& comm, const std::string& label) {
  const at::NoGradGuard no_grad;
  const Mesh& mesh = comm.mesh();
  const bool collects = comm.rank() == kCollector;
  SHARDPROOF_ASSERT(collects == full.defined(), "rank 0 alone has room for the full tensor");
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const auto copies = held.layout.replicas_of(mesh, rank);
    if (*std::min_element(copies.begin(), copies.end()) != rank) continue;
    const auto shape = held.layout.local_shape(held.global_shape, mesh, rank);
    if (c10::multiply_integers(shape) == 0) continue;
    if (rank == kCollector) {
      if (collects) write_piece(full, held.piece, held.layout, mesh, rank);
    } else if (collects) {
      const at::Tensor like = at::empty(shape, at::TensorOptions().dtype(dtype).device(device));
      write_piece(full, comm.world().recv(like, rank, label), held.layout, mesh, rank);
    } else if (comm.rank() == rank) {
      const auto wire = at::TensorOptions().dtype(dtype).device(device);
      comm.world().send(held.piece.detach().to(wire), kCollector, label);
    }
  }
}

}  // namespace shardproof
