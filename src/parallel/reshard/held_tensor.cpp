#include "parallel/reshard/held_tensor.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof {
namespace {

constexpr int64_t kCollector = 0;

bool is_run(const std::vector<int64_t>& indices) {
  for (size_t i = 1; i < indices.size(); ++i) {
    if (indices[i] != indices[i - 1] + 1) return false;
  }
  return indices.empty() || indices.front() >= 0;
}

// Writes the elements along one dim to their positions, dim by dim; padding (-1) is dropped.
void place_along(at::Tensor full, at::Tensor piece, const HeldTensor& held, const Mesh& mesh,
                 int64_t rank, int64_t dim) {
  if (dim == full.dim()) {
    full.copy_(piece);
    return;
  }
  const auto global_size = held.global_shape[static_cast<size_t>(dim)];
  const std::vector<int64_t> indices = held.layout.indices(dim, global_size, mesh, rank);
  if (indices.empty()) return;
  if (is_run(indices)) {
    const auto count = static_cast<int64_t>(indices.size());
    place_along(full.narrow(dim, indices.front(), count), piece, held, mesh, rank, dim + 1);
    return;
  }
  for (size_t i = 0; i < indices.size();) {  // one run after the other
    size_t end = i + 1;
    while (end < indices.size() && indices[i] >= 0 && indices[end] == indices[end - 1] + 1) ++end;
    const auto count = static_cast<int64_t>(end - i);
    if (indices[i] >= 0) {
      place_along(full.narrow(dim, indices[i], count),
                  piece.narrow(dim, static_cast<int64_t>(i), count), held, mesh, rank, dim + 1);
    }
    i = end;
  }
}

void place(const at::Tensor& full, const at::Tensor& piece, const HeldTensor& held,
           const Mesh& mesh, int64_t rank) {
  if (piece.numel() > 0) place_along(full, piece, held, mesh, rank, 0);
}

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
      if (collects) place(full, held.piece.detach(), held, mesh, rank);
    } else if (collects) {
      const at::Tensor like = at::empty(shape, at::TensorOptions().dtype(dtype).device(device));
      place(full, comm.world().recv(like, rank, label), held, mesh, rank);
    } else if (comm.rank() == rank) {
      const auto wire = at::TensorOptions().dtype(dtype).device(device);
      comm.world().send(held.piece.detach().to(wire), kCollector, label);
    }
  }
}

}  // namespace shardproof
