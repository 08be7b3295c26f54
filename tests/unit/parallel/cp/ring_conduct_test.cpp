// A ring's calls, its saved memory, inputs that it must not change, and the effect of a neighbor in
// the bin.
#include <ATen/ATen.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>

#include "parallel/cp/buffers.h"
#include "tensor/tensor_memory.h"
#include "tests/unit/parallel/cp/ring_cases.h"

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

std::vector<std::string> calls_of(Rotation rotation, int64_t cp_size) {
  std::vector<CallLog> logs(static_cast<size_t>(cp_size));
  std::vector<CallListener*> listeners;
  for (CallLog& log : logs) listeners.push_back(&log);
  const RingCase c{.row = padded_row({24}, ContextLayout::kZigzag, cp_size), .rotation = rotation};
  rethrow_first(try_emulated_ranks(
      Mesh({{"cp", cp_size}}),
      [&](MeshComm& comm, int64_t) { attend_on_rank(c, comm.along("cp")); }, listeners));
  for (const CallLog& log : logs) CHECK(log.calls == logs[0].calls);
  return logs[0].calls;
}

int64_t count(const std::vector<std::string>& calls, const std::string& call) {
  return std::count(calls.begin(), calls.end(), call);
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

TEST_CASE("keys go round forward and backward, and their gradients go home", "[CP-1]") {
  const auto ring = calls_of(Rotation::kSendRecv, 3);
  for (const std::string op : {"send", "recv"}) {
    CHECK(count(ring, op + " ring attention kv forward") == 2);
    CHECK(count(ring, op + " ring attention kv backward") == 2);
    CHECK(count(ring, op + " ring attention grad_kv backward") == 3);
  }
  CHECK(ring.size() == 14);
  const auto all_to_all = calls_of(Rotation::kAllToAll, 3);
  CHECK(count(all_to_all, "all_to_all ring attention kv forward") == 2);
  CHECK(all_to_all.size() == 7);
  CHECK(calls_of(Rotation::kAllGather, 3) ==
        std::vector<std::string>{"all_gather ring attention kv forward",
                                 "all_gather ring attention kv backward",
                                 "reduce_scatter ring attention grad_kv backward"});
  CHECK(calls_of(Rotation::kSendRecv, 1).empty());
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

TEST_CASE("a neighbour in the bin changes not one bit", "[CP-3]") {
  const Row row{.lengths = {7, 16, 3}, .padded = {8, 16, 8}};
  for (const Rotation rotation : {Rotation::kSendRecv, Rotation::kAllToAll, Rotation::kAllGather}) {
    const auto run = [&](bool changed) {
      std::vector<at::Tensor> results(2);
      run_emulated_ranks(Mesh({{"cp", 2}}), [&](MeshComm& comm, int64_t rank) {
        const auto layout = SequenceLayout::packed(row.cu_seqlens(), row.cu_seqlens_padded(), 2,
                                                   ContextLayout::kZigzag);
        const auto part = [&](int64_t seed) {
          at::Tensor full = random_tensor({1, 32, 4, 4}, seed);
          if (changed) full.narrow(1, 8, 16) += 100 * random_tensor({1, 16, 4, 4}, seed + 50);
          return sequence_shard(full, layout, rank, 1);
        };
        const at::Tensor q = part(1).requires_grad_(), k = part(2).requires_grad_();
        const at::Tensor v = part(3).requires_grad_();
        const at::Tensor out =
            ring_attention(q, k, v, layout, comm.along("cp"), {.rotation = rotation});
        out.backward(part(4));
        const at::Tensor others = at::tensor(layout.sequence_ids(rank), at::kLong).ne(1);
        results[static_cast<size_t>(rank)] =
            at::cat({out.detach(), q.grad(), k.grad(), v.grad()}, 0)
                .transpose(0, 1)
                .index({others});
      });
      return results;
    };
    const auto golden = run(false), actual = run(true);
    for (size_t rank = 0; rank < 2; ++rank) CHECK(at::equal(golden[rank], actual[rank]));
  }
}

TEST_CASE("buffers are cut together, and a token keeps its position", "[CP-2]") {
  const auto layout = SequenceLayout::packed({0, 7, 10}, {0, 12, 24}, 3, ContextLayout::kZigzag);
  at::Tensor positions = at::empty({1, 24}, at::kLong);
  for (int64_t i = 0; i < 24; ++i) positions[0][i] = i % 12;
  const at::Tensor ids = at::arange(100, 124, at::kLong).view({1, 24});
  const at::Tensor labels = at::arange(200, 224, at::kLong).view({24, 1});
  for (int64_t rank = 0; rank < 3; ++rank) {
    const auto local = shard_buffers({{ids}, {positions}, {labels, 0}}, layout, rank);
    const at::Tensor index = at::tensor(layout.indices(rank), at::kLong);
    CHECK(at::equal(local[0].flatten(), index + 100));
    CHECK(at::equal(local[1].flatten(), local_positions(layout, rank)));
    CHECK(at::equal(local[2].flatten(), index + 200));
    // Each sequence of 12 has chunks of 2; rank r has chunks r and 5 - r.
    const std::vector<int64_t> own = {2 * rank, 2 * rank + 1, 10 - 2 * rank, 11 - 2 * rank};
    CHECK(at::equal(local[1].flatten().narrow(0, 0, 4), at::tensor(own, at::kLong)));
    CHECK(at::equal(local[1].flatten().narrow(0, 4, 4), at::tensor(own, at::kLong)));
  }
}

TEST_CASE("buffers of unequal length are refused", "[CP-2]") {
  const auto layout = SequenceLayout::whole(8, 2, ContextLayout::kZigzag);
  const at::Tensor good = at::zeros({1, 8}), longer = at::zeros({1, 9});
  CHECK_THROWS_WITH(shard_buffers({{good}, {longer}}, layout, 0),
                    Catch::Contains("dim 1 of buffer 1 is 9 long, the padded sequence 8"));
  CHECK_THROWS_WITH(shard_buffers({{good, 2}}, layout, 0), Catch::Contains("no dim 2"));
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
