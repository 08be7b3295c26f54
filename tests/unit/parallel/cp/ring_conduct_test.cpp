// A ring's saved memory, inputs that it must not change, and its lifetime.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "parallel/cp/ring_attention.h"
#include "sequence/sequence_shard.h"
#include "tensor/tensor_memory.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

struct Memory {
  int64_t kept = 0;  // between forward and backward, including the output
  int64_t peak = 0;
};

Memory memory_of_rank_0(int64_t cp_size, Rotation rotation) {
  Memory memory;
  run_emulated_ranks(Mesh({{"cp", cp_size}}), [&](MeshComm& comm, int64_t rank) {
    const auto layout = SequenceLayout::whole(3072, cp_size, ContextLayout::kZigzag);
    const auto part = [&](int64_t heads, int64_t seed) {
      return sequence_shard(random_tensor({1, 3072, heads, 8}, seed), layout, rank, 1);
    };
    const at::Tensor q = part(8, 1).requires_grad_(), k = part(2, 2).requires_grad_();
    const at::Tensor v = part(2, 3).requires_grad_(), grad = part(8, 4);
    const TensorMemory held;
    const at::Tensor out = ring_attention(q, k, v, layout, comm.along("cp"),
                                          {.rotation = rotation, .tile_length = 64});
    const int64_t kept = held.current_bytes();
    out.backward(grad);
    if (rank == 0) memory = {.kept = kept, .peak = held.peak_bytes()};
  });
  return memory;
}

}  // namespace

TEST_CASE("a ring keeps q, k, v, out and lse of its own part, and less of it with more ranks",
          "[CP-1]") {
  for (const Rotation rotation : {Rotation::kSendRecv, Rotation::kAllToAll}) {
    const Memory one = memory_of_rank_0(1, rotation), four = memory_of_rank_0(4, rotation);
    INFO("kept " << one.kept << " and " << four.kept << ", peak " << one.peak << " and "
                 << four.peak);
    // Saved: out [T_cp, 8, 8] and lse [T_cp, 8] in float64.
    CHECK(one.kept == 3072 * 8 * 9 * 8);
    CHECK(four.kept == 768 * 8 * 9 * 8);
    CHECK(2 * four.peak < one.peak);
  }
  CHECK(memory_of_rank_0(4, Rotation::kAllGather).kept == 768 * 8 * 9 * 8);
}

TEST_CASE("inputs with strides of their own are read right and written by nobody", "[CP-1]") {
  // q, k and v are slices of one tensor, and the gradient is transposed.
  std::vector<std::string> wrong(2);
  run_emulated_ranks(Mesh({{"cp", 2}}), [&](MeshComm& comm, int64_t rank) {
    const auto layout = SequenceLayout::whole(8, 2, ContextLayout::kZigzag);
    const at::Tensor qkv = random_tensor({2, 4, 3, 5, 4}, 10 + rank);
    const at::Tensor grad = random_tensor({4, 5, 4, 2}, 20 + rank).permute({3, 2, 1, 0});
    const at::Tensor before = qkv.clone(), grad_before = grad.clone();
    const auto run = [&](bool dense) {
      const at::Tensor leaf = qkv.clone().requires_grad_();
      std::vector<at::Tensor> parts = leaf.unbind(2);
      if (dense) {
        for (at::Tensor& part : parts) part = part.contiguous();
      }
      const at::Tensor out = ring_attention(parts[0], parts[1], parts[2], layout, comm.along("cp"));
      out.backward(dense ? grad.contiguous() : grad);
      return std::vector<at::Tensor>{out.detach(), leaf.grad()};
    };
    const auto dense = run(true), strided = run(false);
    std::string& text = wrong[static_cast<size_t>(rank)];
    text = difference(dense[0], strided[0], 0) + difference(dense[1], strided[1], 0) +
           difference(before, qkv, 0) + difference(grad_before, grad, 0);
  });
  for (const std::string& text : wrong) CHECK(text == "");
}

TEST_CASE("one position and one head: inputs are not written to", "[CP-1]") {
  run_emulated_ranks(Mesh({{"cp", 1}}), [&](MeshComm& comm, int64_t) {
    const auto layout = SequenceLayout::whole(1, 1, ContextLayout::kZigzag);
    const at::Tensor q = random_tensor({1, 1, 1, 4}, 1).requires_grad_(),
                     before = q.detach().clone();
    const at::Tensor grad = random_tensor({1, 1, 1, 4}, 2), grad_before = grad.clone();
    ring_attention(q, q, q, layout, comm.along("cp")).backward(grad);
    if (!at::equal(q.detach(), before) || !at::equal(grad, grad_before)) {
      throw std::runtime_error("an input was written to");
    }
  });
}

TEST_CASE("a ring's backward after its communicator has ended is an error", "[CP-1]") {
  const auto said = backward_after_the_end(Mesh({{"cp", 2}}), [](MeshComm& comm, int64_t) {
    const auto layout = SequenceLayout::whole(8, 2, ContextLayout::kZigzag);
    const at::Tensor q = at::ones({1, 4, 1, 2}).requires_grad_(), kv = at::ones({1, 4, 1, 2});
    return ring_attention(q, kv, kv, layout, comm.along("cp"));
  });
  for (const std::string& text : said) {
    CHECK_THAT(text, Catch::Contains("the communicator brief.cp[0,1] has ended"));
  }
}

}  // namespace shardproof::tests
