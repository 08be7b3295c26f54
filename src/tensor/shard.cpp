// Cuts and reassembles by indices per dim: a range becomes a narrow, anything else an index.
#include "tensor/shard.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof {
namespace {

using Indices = std::vector<int64_t>;

bool is_range(const Indices& indices) {
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] != indices[0] + static_cast<int64_t>(i)) return false;
  }
  return indices.empty() || indices[0] >= 0;
}

at::Tensor index_tensor(const Indices& indices, const at::Tensor& like) {
  return at::tensor(indices, at::kLong).to(like.device());
}

at::Tensor take(const at::Tensor& full, int64_t dim, const Indices& indices) {
  if (is_range(indices)) {
    return full.narrow(dim, indices.empty() ? 0 : indices[0], static_cast<int64_t>(indices.size()));
  }
  Indices sources = indices, padding;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] >= 0) continue;
    sources[i] = 0;
    padding.push_back(static_cast<int64_t>(i));
  }
  if (padding.size() == indices.size()) {  // `full` may be empty and have no row 0
    auto shape = full.sizes().vec();
    shape[dim] = static_cast<int64_t>(indices.size());
    return at::zeros(shape, full.options());
  }
  at::Tensor piece = full.index_select(dim, index_tensor(sources, full));
  if (!padding.empty()) piece.index_fill_(dim, index_tensor(padding, full), 0);
  return piece;
}

// The destination indices per dim of one rank's piece, and the piece without padding.
struct Placed {
  std::vector<Indices> destinations;
  at::Tensor piece;
};

Placed place(const at::Tensor& piece, const std::vector<int64_t>& global_shape,
             const Layout& layout, const Mesh& mesh, int64_t rank) {
  Placed placed{{}, piece};
  for (int64_t dim = 0; dim < static_cast<int64_t>(global_shape.size()); ++dim) {
    Indices destination, kept;
    const Indices indices = layout.indices(dim, global_shape[dim], mesh, rank);
    for (size_t i = 0; i < indices.size(); ++i) {
      if (indices[i] < 0) continue;
      destination.push_back(indices[i]);
      kept.push_back(static_cast<int64_t>(i));
    }
    placed.piece = take(placed.piece, dim, kept);
    placed.destinations.push_back(std::move(destination));
  }
  return placed;
}

void write_at(at::Tensor full, const std::vector<Indices>& destinations, const at::Tensor& piece) {
  bool ranges = true;
  for (const auto& indices : destinations) ranges = ranges && is_range(indices);
  const auto dim_count = static_cast<int64_t>(destinations.size());
  if (ranges) {
    for (int64_t dim = 0; dim < dim_count; ++dim) full = take(full, dim, destinations[dim]);
    full.copy_(piece);
    return;
  }
  c10::List<std::optional<at::Tensor>> index;
  for (int64_t dim = 0; dim < dim_count; ++dim) {  // shapes [.., n_dim, ..] broadcast to a grid
    std::vector<int64_t> shape(static_cast<size_t>(dim_count), 1);
    shape[dim] = -1;
    if (destinations[dim].empty()) return;
    index.push_back(index_tensor(destinations[dim], full).view(shape));
  }
  full.index_put_(index, piece);
}

void check_pieces(const std::vector<at::Tensor>& pieces, const std::vector<int64_t>& global_shape,
                  const Layout& layout, const Mesh& mesh) {
  const auto refuse = [](std::string what) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = std::move(what),
                 .fix = "give one piece per rank, each cut by this layout"});
  };
  const auto count = static_cast<int64_t>(pieces.size());
  if (count != mesh.world_size()) {
    refuse(fmt::format("{} pieces for a mesh of {} ranks", count, mesh.world_size()));
  }
  for (int64_t rank = 0; rank < count; ++rank) {
    const at::Tensor& piece = pieces[rank];
    if (!piece.defined()) refuse(fmt::format("rank {} gives no piece", rank));
    const auto shape = layout.local_shape(global_shape, mesh, rank);
    if (!piece.sizes().equals(shape) || piece.scalar_type() != pieces[0].scalar_type()) {
      refuse(fmt::format("rank {} holds {} {}; {} of {} is {} {}", rank,
                         c10::toString(piece.scalar_type()), piece.sizes().vec(), layout.describe(),
                         global_shape, c10::toString(pieces[0].scalar_type()), shape));
    }
  }
}

}  // namespace

at::Tensor cut(const at::Tensor& full, const Layout& layout, const Mesh& mesh, int64_t rank) {
  const at::NoGradGuard no_grad;
  const Layout resolved = layout.resolved(full.dim());
  at::Tensor piece = full.detach();
  for (int64_t dim = 0; dim < full.dim(); ++dim) {
    if (!resolved.cuts_dim(dim)) continue;
    piece = take(piece, dim, resolved.indices(dim, full.size(dim), mesh, rank));
  }
  const bool fresh = piece.is_contiguous() && !piece.is_alias_of(full);
  return fresh ? piece : piece.clone(at::MemoryFormat::Contiguous);
}

at::Tensor reassemble(const std::vector<at::Tensor>& pieces,
                      const std::vector<int64_t>& global_shape, const Layout& layout,
                      const Mesh& mesh) {
  const at::NoGradGuard no_grad;
  const Layout resolved = layout.resolved(static_cast<int64_t>(global_shape.size()));
  check_pieces(pieces, global_shape, resolved, mesh);
  const at::Tensor full = at::zeros(global_shape, pieces[0].options().requires_grad(false));
  const at::Tensor held = at::zeros(global_shape, full.options().dtype(at::kBool));
  const auto groups = resolved.replica_groups(mesh);
  for (auto group = groups.rbegin(); group != groups.rend();
       ++group) {  // the lowest rank writes last
    const int64_t rank = group->front();
    const auto [destinations, piece] =
        place(pieces[rank].detach(), global_shape, resolved, mesh, rank);
    write_at(full, destinations, piece);
    write_at(held, destinations, at::ones(piece.sizes(), held.options()));
  }
  const int64_t missing = full.numel() - held.sum().item<int64_t>();
  if (missing != 0) {
    throw Error(
        {.kind = ErrorKind::kBadInput,
         .what = fmt::format("{} of {} elements of {} are held by no rank in {} over {}", missing,
                             full.numel(), global_shape, resolved.describe(), mesh.describe()),
         .fix = "correct the layout"});
  }
  return full;
}

}  // namespace shardproof
