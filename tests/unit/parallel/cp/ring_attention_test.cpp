// Ring attention on 1 to 4 ranks against plain attention on one device, forward and backward.
#include "parallel/cp/ring_attention.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "tests/unit/parallel/cp/ring_cases.h"

namespace shardproof::tests {
namespace {

const std::vector<ContextLayout> kLayouts = {ContextLayout::kZigzag, ContextLayout::kContiguous,
                                             ContextLayout::kRow};
const std::vector<Rotation> kRotations = {Rotation::kSendRecv, Rotation::kAllToAll,
                                          Rotation::kAllGather};

void check(const RingCase& c, int64_t cp, const RunRanks& run = run_emulated_ranks) {
  INFO(c.describe(cp));
  CHECK(ring_difference(c, cp, run) == "");
}

}  // namespace

TEST_CASE("each rotation and layout gives what one device gives", "[CP-1]") {
  for (const int64_t cp : {1, 2, 3, 4}) {
    for (const ContextLayout kind : kLayouts) {
      for (const Rotation rotation : kRotations) {
        for (const int64_t length : {24, 13, 1}) {
          check({.row = padded_row({length}, kind, cp), .kind = kind, .rotation = rotation}, cp);
        }
      }
    }
  }
}

TEST_CASE("query heads share kv heads in every ratio", "[CP-1]") {
  for (const int64_t kv_heads : {6, 3, 2, 1}) {
    for (const Rotation rotation : kRotations) {
      check({.row = padded_row({17}, ContextLayout::kZigzag, 3),
             .rotation = rotation,
             .kv_heads = kv_heads},
            3);
    }
  }
}

TEST_CASE("tiles of any length change nothing but the rounding", "[CP-1]") {
  for (const int64_t tile : {1, 2, 3, 5}) {
    for (const ContextLayout kind : kLayouts) {
      check({.row = padded_row({29}, kind, 2), .kind = kind, .tile_length = tile}, 2);
    }
  }
}

TEST_CASE("every query sees every key of its sequence when it is not causal", "[CP-1]") {
  for (const int64_t cp : {1, 2, 4}) {
    for (const ContextLayout kind : kLayouts) {
      check({.row = padded_row({19, 6}, kind, cp), .kind = kind, .rule = {.causal = false}}, cp);
    }
  }
}

TEST_CASE("packed sequences attend each to itself", "[CP-3]") {
  // Lengths 1 and 2, below 2*cp, without padding, 0, and a row that ends with padding only.
  for (const int64_t cp : {1, 2, 3, 4}) {
    for (const ContextLayout kind : kLayouts) {
      for (const Rotation rotation : kRotations) {
        Row row = padded_row({3, 1, 24, 7, 0, 2}, kind, cp);
        row.lengths.push_back(0);
        row.padded.push_back(2 * cp);
        check({.row = row, .kind = kind, .rotation = rotation, .tile_length = 4}, cp);
      }
    }
  }
}

TEST_CASE("a window shorter than a chunk, as long, longer, and longer than all", "[CP-5]") {
  // With cp = 3, 36 tokens have chunks of 6 (zigzag) and 12 (contiguous).
  for (const int64_t window : {1, 2, 5, 6, 7, 12, 13, 20, 35, 100}) {
    for (const ContextLayout kind : {ContextLayout::kZigzag, ContextLayout::kContiguous}) {
      check({.row = padded_row({36}, kind, 3), .kind = kind, .rule = {.window = window}}, 3);
      check({.row = padded_row({9, 22, 4}, kind, 3),
             .kind = kind,
             .rule = {.causal = window % 2 == 0, .window = window},
             .tile_length = 3},
            3);
    }
  }
}

TEST_CASE("rings over Gloo", "[CP-1][CP-3][CP-5]") {
  for (const int64_t cp : {1, 2, 3, 4}) {
    for (const Rotation rotation : kRotations) {
      for (const ContextLayout kind : {ContextLayout::kZigzag, ContextLayout::kContiguous}) {
        check({.row = padded_row({13, 2, 30}, kind, cp), .kind = kind, .rotation = rotation}, cp,
              run_gloo_ranks);
      }
    }
    check({.row = padded_row({21}, ContextLayout::kZigzag, cp), .rule = {.window = 4}}, cp,
          run_gloo_ranks);
  }
}

TEST_CASE("lower precisions round the results once", "[CP-1]") {
  for (const Rotation rotation : kRotations) {
    const RingCase c{.row = padded_row({21, 10}, ContextLayout::kZigzag, 3), .rotation = rotation};
    CHECK(ring_difference(c, 3, run_emulated_ranks, at::kFloat, 2e-6) == "");
    CHECK(ring_difference(c, 3, run_emulated_ranks, at::kBFloat16, 4e-3) == "");
    CHECK(ring_difference(c, 3, run_gloo_ranks, at::kBFloat16, 4e-3) == "");
  }
}

TEST_CASE("bfloat16 sums over the ring are rounded once, at home", "[CP-1]") {
  // On one rank there is no communication, and only the order of float32 sums differs.
  RingCase c{.row = {.lengths = {48}, .padded = {48}}, .kind = ContextLayout::kContiguous};
  const Attended one = attend_on_all(c, 1, run_emulated_ranks, at::kBFloat16)[0];
  for (const Rotation rotation : kRotations) {
    c.rotation = rotation;
    const auto ranks = attend_on_all(c, 4, run_emulated_ranks, at::kBFloat16);
    at::Tensor grad_k;
    for (const Attended& rank : ranks) {
      grad_k = grad_k.defined() ? at::cat({grad_k, rank.grad_k}, 1) : rank.grad_k;
    }
    const at::Tensor differs = grad_k.ne(one.grad_k);
    INFO(differs.sum().item<int64_t>() << " of " << differs.numel() << " elements");
    CHECK(differs.sum().item<int64_t>() * 50 <= differs.numel());
  }
}

TEST_CASE("each run gives the same bits, on either world", "[CP-1]") {
  for (const Rotation rotation : kRotations) {
    const RingCase c{.row = padded_row({27, 5}, ContextLayout::kZigzag, 4),
                     .rotation = rotation,
                     .tile_length = 2};
    const auto first = attend_on_all(c, 4, run_emulated_ranks);
    // Gloo's reduce_scatter sums in another order.
    const bool reduces = rotation == Rotation::kAllGather;
    const auto second =
        attend_on_all(c, 4, reduces ? RunRanks(run_emulated_ranks) : RunRanks(run_gloo_ranks));
    for (size_t rank = 0; rank < 4; ++rank) {
      CHECK(at::equal(first[rank].out, second[rank].out));
      CHECK(at::equal(first[rank].grad_q, second[rank].grad_q));
      CHECK(at::equal(first[rank].grad_k, second[rank].grad_k));
      CHECK(at::equal(first[rank].grad_v, second[rank].grad_v));
    }
  }
}

TEST_CASE("padding gives exactly 0 and takes exactly no gradient", "[CP-3]") {
  const RingCase c{.row = {.lengths = {5, 0, 9}, .padded = {8, 8, 16}}};
  const auto layout =
      SequenceLayout::packed(c.row.cu_seqlens(), c.row.cu_seqlens_padded(), 2, c.kind);
  const auto ranks = attend_on_all(c, 2, run_emulated_ranks);
  for (int64_t rank = 0; rank < 2; ++rank) {
    const at::Tensor padding = at::tensor(layout.token_indices(rank), at::kLong).lt(0);
    REQUIRE(padding.any().item<bool>());
    const Attended& actual = ranks[static_cast<size_t>(rank)];
    for (const at::Tensor& t : {actual.out, actual.grad_q, actual.grad_k, actual.grad_v}) {
      CHECK(t.transpose(0, 1).index({padding}).ne(0).sum().item<int64_t>() == 0);
      CHECK(t.isfinite().all().item<bool>());
    }
  }
}

TEST_CASE("scores of thousands overflow nothing", "[CP-1]") {
  std::vector<at::Tensor> wrong(3);
  run_emulated_ranks(Mesh({{"cp", 3}}), [&](MeshComm& comm, int64_t rank) {
    const auto layout = SequenceLayout::whole(24, 3, ContextLayout::kZigzag);
    const auto part = [&](const at::Tensor& full) { return sequence_shard(full, layout, rank, 1); };
    const at::Tensor q = random_tensor({1, 24, 2, 4}, 1) * 3000,
                     k = random_tensor({1, 24, 2, 4}, 2);
    const at::Tensor v = random_tensor({1, 24, 2, 4}, 3);
    const at::Tensor golden =
        plain_attention(q, k, v, {.lengths = {24}, .padded = {24}}, PlainRule{});
    const at::Tensor out =
        ring_attention(part(q), part(k), part(v), layout, comm.along("cp"), {.tile_length = 2});
    wrong[static_cast<size_t>(rank)] = (out - part(golden)).abs().max();
  });
  for (const at::Tensor& error : wrong) CHECK(error.item<double>() <= 1e-11);
}

}  // namespace shardproof::tests
