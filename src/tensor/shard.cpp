// A cut of a range is a narrow, of anything else an index; pieces are written run by run.
#include "tensor/shard.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

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

// Writes along `dim` and the dims behind it, one run of neighbors after the other.
void write_along(const at::Tensor& full, const at::Tensor& piece,
                 const std::vector<Indices>& places, int64_t dim) {
  if (dim == full.dim()) {
    full.copy_(piece);
    return;
  }
  const Indices& here = places[static_cast<size_t>(dim)];
  for (size_t i = 0; i < here.size();) {
    size_t end = i + 1;
    while (end < here.size() && here[i] >= 0 && here[end] == here[end - 1] + 1) ++end;
    const auto begin = static_cast<int64_t>(i), count = static_cast<int64_t>(end - i);
    if (here[i] >= 0) {
      const bool whole = end - i == here.size();
      write_along(full.narrow(dim, here[i], count), whole ? piece : piece.narrow(dim, begin, count),
                  places, dim + 1);
    }
    i = end;
  }
}

void check_pieces(const std::vector<at::Tensor>& pieces, const std::vector<int64_t>& global_shape,
                  const Layout& layout, const Mesh& mesh) {
  const auto refuse = [](std::string what) {
    throw_bad_input(std::move(what), "give one piece per rank, each cut by this layout");
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

void write_piece(const at::Tensor& full, const at::Tensor& piece, const Layout& layout,
                 const Mesh& mesh, int64_t rank) {
  const at::NoGradGuard no_grad;
  const Layout resolved = layout.resolved(full.dim());
  std::vector<Indices> places;
  for (int64_t dim = 0; dim < full.dim(); ++dim) {
    places.push_back(resolved.indices(dim, full.size(dim), mesh, rank));
  }
  write_along(full, piece.detach(), places, 0);
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
    write_piece(full, pieces[rank], resolved, mesh, rank);
    write_piece(held, at::ones(pieces[rank].sizes(), held.options()), resolved, mesh, rank);
  }
  const int64_t missing = full.numel() - held.sum().item<int64_t>();
  if (missing != 0) {
    throw_bad_input(
        fmt::format("{} of {} elements of {} are held by no rank in {} over {}", missing,
                    full.numel(), global_shape, resolved.describe(), mesh.describe()),
        "correct the layout");
  }
  return full;
}

}  // namespace shardproof
