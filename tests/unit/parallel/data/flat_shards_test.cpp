#include "parallel/data/flat_shards.h"

#include <catch2/catch.hpp>

#include "mesh/layout.h"
#include "tensor/shard.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

std::vector<at::Tensor> whole_tensors(const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<at::Tensor> whole;
  for (size_t i = 0; i < shapes.size(); ++i) {
    whole.push_back(random_tensor(shapes[i], static_cast<int64_t>(i) + 1));
  }
  return whole;
}

const std::vector<std::vector<int64_t>> kShapes = {{5, 2}, {1}, {7, 2, 3}, {4}};

TEST_CASE("each rank's part is what the declared cut gives it, for every number of ranks",
          "[fsdp][MP-5]") {
  for (int64_t ranks = 1; ranks <= 9; ++ranks) {
    const Mesh mesh = Mesh::training({.dp = ranks});
    const FlatShards flat(kShapes, ranks);
    const Layout layout({Cut::chunk(0, "dp")});
    int64_t sum = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      int64_t elements = 0;
      for (const auto& shape : kShapes) {
        elements += c10::multiply_integers(layout.local_shape(shape, mesh, rank));
      }
      CHECK(flat.sizes()[static_cast<size_t>(rank)] == elements);
      sum += elements;
    }
    CHECK(sum == 10 + 1 + 42 + 4);
    CHECK(flat.whole_bytes(8) == 8 * sum);
  }
}

TEST_CASE("what the ranks pack, one behind the other, unpacks to the whole tensors",
          "[fsdp][MP-5]") {
  for (const int64_t ranks : {1, 2, 3, 4, 6, 11}) {
    const Mesh mesh = Mesh::training({.dp = ranks});
    const FlatShards flat(kShapes, ranks);
    const std::vector<at::Tensor> golden = whole_tensors(kShapes);
    std::vector<at::Tensor> buffers, unpacked;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      std::vector<at::Tensor> shards;
      for (const at::Tensor& tensor : golden) {
        shards.push_back(cut(tensor, Layout({Cut::chunk(0, "dp")}), mesh, rank));
      }
      buffers.push_back(flat.pack_shards(shards, at::kDouble));
      const std::vector<at::Tensor> split = flat.split_shards(buffers.back(), rank);
      for (size_t i = 0; i < shards.size(); ++i) CHECK(split[i].equal(shards[i]));
    }
    for (const at::Tensor& tensor : golden) unpacked.push_back(at::full_like(tensor, -7));
    flat.unpack_whole(at::cat(buffers), unpacked);
    for (size_t i = 0; i < golden.size(); ++i) CHECK(unpacked[i].equal(golden[i]));
    CHECK(flat.pack_whole(golden, golden[0].options()).equal(at::cat(buffers)));
  }
}

TEST_CASE("a tensor that is not there packs as zeros, and a wider type is the buffer's",
          "[fsdp][MP-5]") {
  const FlatShards flat({{3}, {2, 2}}, 2);
  const at::Tensor half = at::tensor({1.5, 2.5, -3.0}).to(at::kBFloat16);
  const at::Tensor packed =
      flat.pack_whole({half, at::Tensor()}, at::TensorOptions().dtype(at::kFloat));
  CHECK(packed.scalar_type() == at::kFloat);
  CHECK(packed.equal(at::tensor({1.5f, 2.5f, 0.f, 0.f, -3.0f, 0.f, 0.f})));
}

}  // namespace
}  // namespace shardproof::tests
