// Attention between two all-to-alls, against plain attention on one device.
#include "parallel/ulysses/ulysses_attention.h"

#include <catch2/catch.hpp>

#include "parallel/ulysses/head_shares.h"
#include "tests/unit/parallel/cp/ring_cases.h"

namespace shardproof::tests {
namespace {

// The ring over cp runs inside the all-to-all over ulysses: rank (c, u) holds part u of the tokens
// of rank c in the ring's layout.
std::string wrong_attention(const RingCase& c, int64_t cp_size, int64_t ulysses_size,
                            const RunRanks& run) {
  const Mesh mesh({{"cp", cp_size}, {"ulysses", ulysses_size}});
  const Attended golden = golden_of(c);
  const auto layout =
      SequenceLayout::packed(c.row.cu_seqlens(), c.row.cu_seqlens_padded(), cp_size, c.kind);
  std::vector<std::string> wrong(static_cast<size_t>(mesh.world_size()));
  run(mesh, [&](MeshComm& comm, int64_t rank) {
    Communicator &cp = comm.along("cp"), &ulysses = comm.along("ulysses");
    const auto part = [&](const at::Tensor& full) {
      const at::Tensor local = sequence_shard(full, layout, cp.rank(), 1);
      return local.chunk(ulysses.size(), 1)[static_cast<size_t>(ulysses.rank())].clone();
    };
    const at::Tensor q = part(ring_tensor(c, c.heads, 1)).requires_grad_();
    const at::Tensor k = part(ring_tensor(c, c.kv_heads, 2)).requires_grad_();
    const at::Tensor v = part(ring_tensor(c, c.kv_heads, 3)).requires_grad_();
    const AttentionCore core = [&](const at::Tensor& all_q, const at::Tensor& all_k,
                                   const at::Tensor& all_v) {
      return ring_attention(
          all_q, all_k, all_v, layout, cp,
          {.rotation = c.rotation, .rule = {.causal = c.rule.causal, .window = c.rule.window}});
    };
    const at::Tensor out = ulysses_attention(q, k, v, ulysses, core, "layer");
    out.backward(part(ring_tensor(c, c.heads, 4)));
    wrong[static_cast<size_t>(rank)] = difference(part(golden.out), out.detach(), 2e-12) +
                                       difference(part(golden.grad_q), q.grad(), 2e-12) +
                                       difference(part(golden.grad_k), k.grad(), 2e-12) +
                                       difference(part(golden.grad_v), v.grad(), 2e-12);
  });
  std::string text;
  for (const std::string& one : wrong) text += one;
  return text;
}

}  // namespace

TEST_CASE("each rank attends with its share of the heads, whatever the kv heads are",
          "[US-3][US-4]") {
  for (const int64_t size : {1, 2, 3, 4, 6}) {
    for (const int64_t kv_heads : {12, 6, 4, 3, 2, 1}) {
      const RingCase c{.row = {.lengths = {24}, .padded = {24}}, .heads = 12, .kv_heads = kv_heads};
      INFO("U=" << size << " kv heads " << kv_heads);
      CHECK(wrong_attention(c, 1, size, run_emulated_ranks) == "");
    }
  }
}

TEST_CASE("packed rows, cut by Ulysses wherever the sequences are", "[US-4]") {
  for (const int64_t size : {2, 3, 4}) {
    RingCase c{.row = {.lengths = {5, 1, 17}, .padded = {5, 1, 18}}, .heads = 12, .kv_heads = 4};
    CHECK(wrong_attention(c, 1, size, run_emulated_ranks) == "");
    c.rule.window = 4;
    CHECK(wrong_attention(c, 1, size, run_emulated_ranks) == "");
  }
}

TEST_CASE("a ring over cp inside Ulysses, both above 1", "[CP-1][US-4]") {
  for (const int64_t cp : {2, 3}) {
    for (const int64_t size : {2, 4}) {
      const RingCase c{.row = {.lengths = {47}, .padded = {48}}, .heads = 8, .kv_heads = 2};
      INFO("cp=" << cp << " U=" << size);
      CHECK(wrong_attention(c, cp, size, run_emulated_ranks) == "");
    }
  }
  const RingCase c{.row = {.lengths = {9, 14}, .padded = {16, 16}}, .heads = 4, .kv_heads = 1};
  CHECK(wrong_attention(c, 2, 2, run_gloo_ranks) == "");
}

TEST_CASE("Ulysses over Gloo", "[US-3]") {
  for (const int64_t size : {2, 3, 4}) {
    for (const int64_t kv_heads : {4, 3, 1}) {
      const RingCase c{.row = {.lengths = {12}, .padded = {12}}, .heads = 12, .kv_heads = kv_heads};
      CHECK(wrong_attention(c, 1, size, run_gloo_ranks) == "");
    }
  }
}

TEST_CASE("kv heads are repeated no more than they must be, and lie where they are used",
          "[US-3]") {
  CHECK(head_shares(8, 2, 4).kv_repeats == 2);
  CHECK(head_shares(12, 4, 2).kv_repeats == 1);
  CHECK(head_shares(12, 3, 2).kv_repeats == 2);
  for (const int64_t size : {1, 2, 3, 4, 6}) {
    for (const int64_t kv_heads : {1, 2, 3, 4, 6, 12, 24}) {
      const HeadShares shares = head_shares(24, kv_heads, size);
      const int64_t group = 24 / kv_heads, local_group = shares.query_heads / shares.kv_heads;
      for (int64_t h = 0; h < 24; ++h) {
        const int64_t rank = h / shares.query_heads;
        const int64_t copy = rank * shares.kv_heads + (h % shares.query_heads) / local_group;
        CHECK(copy / shares.kv_repeats == h / group);
      }
    }
  }
}

TEST_CASE("query heads that do not divide are refused with the numbers", "[US-3]") {
  CHECK_THROWS_WITH(head_shares(6, 2, 4),
                    Catch::Contains("6 query heads do not divide by ulysses=4"));
}

}  // namespace shardproof::tests
