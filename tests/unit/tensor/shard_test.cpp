// Tensors cut over meshes with unequal axes and assembled again.
#include "tensor/shard.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "base/error.h"

using shardproof::Cut;
using shardproof::cut;
using shardproof::Error;
using shardproof::Layout;
using shardproof::Mesh;
using shardproof::reassemble;

namespace {

at::Tensor numbered(std::vector<int64_t> shape, at::ScalarType type = at::kDouble) {
  return at::arange(1, c10::multiply_integers(shape) + 1, at::kDouble).view(shape).to(type);
}

std::vector<at::Tensor> cut_all(const at::Tensor& full, const Layout& layout, const Mesh& mesh) {
  std::vector<at::Tensor> pieces;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    pieces.push_back(cut(full, layout, mesh, rank));
    REQUIRE(pieces.back().is_contiguous());
    REQUIRE(pieces.back().sizes().equals(layout.local_shape(full.sizes().vec(), mesh, rank)));
    REQUIRE((full.numel() == 0 || !pieces.back().is_alias_of(full)));
  }
  return pieces;
}

// Checks each position by Layout::indices, without the tensor operations of cut().
void check_elements(const at::Tensor& full, const at::Tensor& piece, const Layout& layout,
                    const Mesh& mesh, int64_t rank) {
  const auto rows = layout.indices(0, full.size(0), mesh, rank);
  const auto columns = layout.indices(1, full.size(1), mesh, rank);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t j = 0; j < columns.size(); ++j) {
      const bool padding = rows[i] < 0 || columns[j] < 0;
      const double wanted = padding ? 0 : full[rows[i]][columns[j]].item<double>();
      REQUIRE(piece[static_cast<int64_t>(i)][static_cast<int64_t>(j)].item<double>() == wanted);
    }
  }
}

}  // namespace

TEST_CASE("cut then reassemble gives the full tensor back, element by element", "[shard]") {
  const std::vector<Layout> layouts = {
      Layout(),
      Layout({Cut::even(0, "tp")}),
      Layout({Cut::even(1, "tp"), Cut::chunk(0, "dp")}),
      Layout({Cut::even(0, "tp"), Cut::chunk(0, "dp")}),
      Layout({Cut::even(0, "tp"), Cut::chunk(0, "dp"), Cut::chunk(0, "cp")}),
      Layout({Cut::chunk(0, "dp"), Cut::zigzag(1, "cp")}),
      Layout({Cut::padded(0, "tp", 15), Cut::zigzag(1, "cp")}),
      Layout({Cut::padded(0, "tp", 21), Cut::chunk(0, "dp")}),
      Layout({Cut::in_blocks(0, "tp", {9, 3}), Cut::chunk(0, "dp")}),
      Layout({Cut::in_blocks(0, "tp", {6, 6}), Cut::zigzag(1, "cp")}),
      Layout({Cut::repeated(0, "tp", 1), Cut::chunk(1, "dp")}),
      Layout({Cut::repeated(1, "cp", 2), Cut::chunk(1, "dp"), Cut::even(0, "tp")}),
  };
  for (const Mesh& mesh :
       {Mesh::training({.dp = 2, .cp = 2, .tp = 3}), Mesh::training({.dp = 4, .cp = 2, .tp = 3}),
        Mesh::training({.tp = 3}), Mesh::training({.dp = 3, .ulysses = 2})}) {
    const at::Tensor full = numbered({12, 24});
    for (const Layout& layout : layouts) {
      if (layout == layouts.back() && mesh.size("cp") != 2) continue;  // requires two ranks on cp
      const auto pieces = cut_all(full, layout, mesh);
      for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
        check_elements(full, pieces[rank], layout, mesh, rank);
      }
      CHECK(reassemble(pieces, {12, 24}, layout, mesh).equal(full));
    }
  }
}

TEST_CASE("prime sizes, empty ranks, scalars, empty tensors and other dtypes survive", "[shard]") {
  const Mesh mesh = Mesh::training({.dp = 4, .tp = 3});
  const Layout strided({Cut::chunk(0, "tp"), Cut::chunk(0, "dp")});
  for (const int64_t rows : {0, 1, 2, 7, 13}) {
    const at::Tensor full = numbered({rows, 5});
    const auto pieces = cut_all(full, strided, mesh);
    CHECK(reassemble(pieces, {rows, 5}, strided, mesh).equal(full));
  }
  const at::Tensor empty = numbered({0, 5});
  const Layout padded({Cut::padded(0, "tp", 3)});
  CHECK(cut(empty, padded, mesh, 1).equal(at::zeros({1, 5}, at::kDouble)));
  CHECK(reassemble(cut_all(empty, padded, mesh), {0, 5}, padded, mesh).equal(empty));
  const at::Tensor scalar = at::scalar_tensor(3.5, at::kDouble);
  CHECK(reassemble(cut_all(scalar, Layout(), mesh), {}, Layout(), mesh).equal(scalar));
  for (const auto type :
       {at::kFloat, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kByte, at::kBool}) {
    const at::Tensor full = numbered({7, 6}, type);
    const Layout layout({Cut::chunk(0, "dp"), Cut::even(1, "tp")});
    const at::Tensor again = reassemble(cut_all(full, layout, mesh), {7, 6}, layout, mesh);
    CHECK(again.equal(full));
    CHECK(again.scalar_type() == type);
  }
}

TEST_CASE("cut takes strided tensors and tensors that require gradients", "[shard]") {
  const Mesh mesh = Mesh::training({.tp = 3});
  const at::Tensor base = numbered({4, 6});
  const at::Tensor leaf = base.t().detach().requires_grad_();
  const at::Tensor piece = cut(leaf, Layout({Cut::even(-2, "tp")}), mesh, 1);
  CHECK_FALSE(piece.requires_grad());
  CHECK(piece.equal(base.t().slice(0, 2, 4)));
  CHECK(cut(base, Layout(), mesh, 0).equal(base));
}

TEST_CASE("where ranks hold equal copies the lowest rank's counts", "[shard]") {
  const Mesh mesh = Mesh::training({.dp = 2, .tp = 3});
  const Layout layout({Cut::even(0, "tp")});
  const at::Tensor full = numbered({6});
  auto pieces = cut_all(full, layout, mesh);
  pieces[4].fill_(-1);  // of dp 1, tp 1: a copy of rank 1's piece
  CHECK(reassemble(pieces, {6}, layout, mesh).equal(full));
  pieces[1].fill_(-2);
  CHECK_FALSE(reassemble(pieces, {6}, layout, mesh).equal(full));
}

TEST_CASE("what cannot be put together is refused with its numbers", "[shard]") {
  using Catch::Matchers::Contains;
  const Mesh mesh = Mesh::training({.tp = 3});
  const Layout layout({Cut::even(0, "tp")});
  auto pieces = cut_all(numbered({6, 2}), layout, mesh);
  CHECK_THROWS_WITH(reassemble({pieces[0]}, {6, 2}, layout, mesh),
                    Contains("1 pieces for a mesh of 3"));
  pieces[2] = numbered({1, 2});
  CHECK_THROWS_WITH(reassemble(pieces, {6, 2}, layout, mesh),
                    Contains("rank 2 holds") && Contains("[1, 2]"));
  pieces[2] = numbered({2, 2}, at::kFloat);
  CHECK_THROWS_AS(reassemble(pieces, {6, 2}, layout, mesh), Error);
  pieces[2] = at::Tensor();
  CHECK_THROWS_WITH(reassemble(pieces, {6, 2}, layout, mesh), Contains("rank 2 gives no piece"));
  const Layout diagonal({Cut::even(0, "tp"), Cut::even(1, "tp")});  // one axis cuts both dims
  CHECK_THROWS_WITH(reassemble(cut_all(numbered({3, 3}), diagonal, mesh), {3, 3}, diagonal, mesh),
                    Contains("6 of 9 elements"));
  CHECK_THROWS_AS(cut(numbered({7}), layout, mesh, 0), Error);
}
