// Tensors cut and restored along the sequence, against cuts by hand, and the calls of both gathers.
#include "sequence/sequence_shard.h"

#include <catch2/catch.hpp>

#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests {
namespace {

SequenceLayout ragged(int64_t cp) {
  const int64_t unit = 2 * cp;
  return SequenceLayout::packed({0, 3, 3, 4, 4 + 2 * unit},
                                {0, 2 * unit, 2 * unit, 3 * unit, 5 * unit}, cp,
                                ContextLayout::kZigzag);
}

TEST_CASE("shards of all ranks, concatenated and unsharded, are the tensor again", "[LP-6]") {
  for (const int64_t cp : {1, 2, 3, 4}) {
    const SequenceLayout layout = ragged(cp);
    for (const int64_t dim : {0, 1, 2, -1}) {
      std::vector<int64_t> shape = {2, 3, 4};
      shape[static_cast<size_t>(dim < 0 ? dim + 3 : dim)] = layout.num_positions();
      const at::Tensor full = random_tensor(shape, 1);
      std::vector<at::Tensor> shards;
      for (int64_t rank = 0; rank < cp; ++rank) {
        shards.push_back(sequence_shard(full, layout, rank, dim));
        CHECK(shards.back().size(dim) == layout.local_positions());
      }
      CHECK(sequence_unshard(at::cat(shards, dim), layout, dim).equal(full));
    }
  }
}

TEST_CASE("the zigzag shard is chunks r and 2*cp-1-r, of any dtype and strides", "[LP-6]") {
  for (const int64_t cp : {2, 3, 4}) {
    const SequenceLayout layout = SequenceLayout::whole(6 * cp, cp, ContextLayout::kZigzag);
    const at::Tensor full =
        at::arange(2 * 6 * cp * 3, at::kLong).view({3, 6 * cp, 2}).transpose(0, 2);
    for (int64_t rank = 0; rank < cp; ++rank) {
      CHECK(sequence_shard(full, layout, rank, 1).equal(zigzag_of(full, cp, rank, 1)));
    }
  }
}

TEST_CASE("padding is laid out between sequences and takes no gradient", "[LP-6]") {
  const SequenceLayout layout = ragged(3);
  const at::Tensor tokens = random_tensor({2, 16}, 1).requires_grad_();
  const at::Tensor row = pad_sequences(tokens, layout, 1, -5);
  CHECK(row.size(1) == 30);
  CHECK(row.narrow(1, 3, 9).eq(-5).all().item<bool>());
  CHECK(row.narrow(1, 18, 12).equal(tokens.narrow(1, 4, 12)));
  const at::Tensor grad = random_tensor({2, 30}, 2);
  row.backward(grad);
  // The tokens begin at 0 and 12 of the row.
  CHECK(tokens.grad().equal(
      at::cat({grad.narrow(1, 0, 3), grad.narrow(1, 12, 1), grad.narrow(1, 18, 12)}, 1)));
}

TEST_CASE("the slice backward communicates nothing, the other once", "[LP-7]") {
  const auto calls = calls_of_ranks(Mesh::training({.cp = 2}), [](MeshComm& comm, int64_t rank) {
    const SequenceLayout layout = ragged(2);
    const at::Tensor shard =
        sequence_shard(random_tensor({layout.num_positions()}, 1), layout, rank, 0)
            .requires_grad_();
    Communicator& cp = comm.along("cp");
    sequence_gather_with_slice_backward(shard, layout, cp, 0, "a").sum().backward();
    sequence_gather_with_reduce_scatter_backward(shard, layout, cp, 0, "b").sum().backward();
  });
  CHECK(calls[1] == std::vector<std::string>{"all_gather a forward", "all_gather b forward",
                                             "reduce_scatter b backward"});
}

}  // namespace
}  // namespace shardproof::tests
