#include "train/whole_matrices.h"

#include <ATen/ATen.h>

#include <numeric>

#include "mesh/cut.h"
#include "tensor/shard.h"

namespace shardproof {
namespace {

Layout first_cuts(const Layout& layout, size_t count) {
  return Layout({layout.cuts().begin(), layout.cuts().begin() + static_cast<int64_t>(count)});
}

}  // namespace

WholeMatrix::WholeMatrix(const Parameter& parameter, MeshComm& comm, at::Device device)
    : parameter_(parameter), comm_(comm), device_(device) {
  const int64_t dims = std::ssize(parameter.global_shape);
  const Layout layout = parameter.layout.resolved(dims);
  for (const Cut& one : layout.cuts()) {
    const bool of_matrix = one.dim >= dims - 2 && one.kind != Cut::Kind::kHeldBy;
    (of_matrix ? undone_ : kept_).append(one);
  }
}

at::Tensor WholeMatrix::undo(size_t index, const at::Tensor& piece,
                             const std::vector<int64_t>& whole_shape) const {
  const Mesh& mesh = comm_.mesh();
  const Cut& cut = undone_.cuts()[index];
  const std::vector<int64_t> shape =
      first_cuts(undone_, index).local_shape(whole_shape, mesh, comm_.rank());
  std::vector<int64_t> positions(static_cast<size_t>(shape[static_cast<size_t>(cut.dim)]));
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<std::vector<int64_t>> held;  // by coordinate on the axis
  std::vector<std::vector<int64_t>> shapes;
  std::vector<int64_t> sizes;
  for (int64_t coordinate = 0; coordinate < mesh.size(cut.axis); ++coordinate) {
    held.push_back(apply_cut(cut, positions, mesh.size(cut.axis), coordinate));
    shapes.push_back(shape);
    shapes.back()[static_cast<size_t>(cut.dim)] = std::ssize(held.back());
    sizes.push_back(c10::multiply_integers(shapes.back()));
  }
  const at::Tensor all = comm_.along(cut.axis).all_gather(piece.contiguous().view({-1}), 0,
                                                          "whole " + parameter_.name, sizes);
  const at::Tensor out = at::zeros(shape, piece.options());
  const std::vector<at::Tensor> pieces = all.split_with_sizes(sizes);
  for (size_t i = 0; i < pieces.size(); ++i) {
    const at::Tensor places = at::tensor(held[i], at::kLong).to(piece.device());
    const at::Tensor real = places.ge(0).nonzero().view({-1});  // without padding
    out.index_copy_(cut.dim, places.index_select(0, real),
                    pieces[i].view(shapes[i]).index_select(cut.dim, real));
  }
  return out;
}

at::Tensor WholeMatrix::gather(const at::Tensor& shard) const {
  const std::vector<int64_t> whole =
      kept_.local_shape(parameter_.global_shape, comm_.mesh(), comm_.rank());
  if (c10::multiply_integers(whole) == 0) return at::zeros(whole, shard.options());
  at::Tensor piece = shard.to(device_);
  for (size_t i = undone_.cuts().size(); i-- > 0;) piece = undo(i, piece, whole);
  return piece.to(shard.device());
}

at::Tensor WholeMatrix::shard(const at::Tensor& whole) const {
  return cut(whole, undone_, comm_.mesh(), comm_.rank());
}

}  // namespace shardproof
