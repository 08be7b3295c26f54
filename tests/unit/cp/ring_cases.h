// One case of ring attention on every rank of a world, against plain attention on one device.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <string>

#include "parallel/cp/ring_attention.h"
#include "sequence/sequence_shard.h"
#include "tests/support/run_gloo_ranks.h"
#include "tests/unit/cp/plain_attention.h"
#include "tests/unit/parallel/rank_results.h"

namespace shardproof::tests {

struct RingCase {
  Row row;
  ContextLayout kind = ContextLayout::kZigzag;
  Rotation rotation = Rotation::kSendRecv;
  int64_t heads = 6, kv_heads = 2;
  PlainRule rule = {};
  int64_t tile_length = 512;
  int64_t batch = 2;

  std::string describe(int64_t cp) const {
    std::string text = "cp=" + std::to_string(cp) + " " + context_layout_name(kind) + " " +
                       rotation_name(rotation) + " heads " + std::to_string(heads) + "/" +
                       std::to_string(kv_heads) + (rule.causal ? " causal" : " full") + " window " +
                       std::to_string(rule.window) + " tile " + std::to_string(tile_length) +
                       " lengths";
    for (size_t i = 0; i < row.lengths.size(); ++i) {
      text += " " + std::to_string(row.lengths[i]) + "/" + std::to_string(row.padded[i]);
    }
    return text;
  }
};

// Each length padded to what the layout needs, a row to what cp needs.
inline Row padded_row(const std::vector<int64_t>& lengths, ContextLayout kind, int64_t cp) {
  Row row{.lengths = lengths, .padded = lengths};
  const int64_t multiple = sequence_multiple(kind, cp);
  for (int64_t& padded : row.padded) padded = (padded + multiple - 1) / multiple * multiple;
  if (kind == ContextLayout::kRow && row.size() % cp != 0) {
    row.padded.back() += cp - row.size() % cp;
  }
  return row;
}

struct Attended {
  at::Tensor out, grad_q, grad_k, grad_v;
};

constexpr int64_t kHeadDim = 4;

// [B, T, heads, D], every element different; padding is not 0.
inline at::Tensor ring_tensor(const RingCase& c, int64_t heads, int64_t seed) {
  return random_tensor({c.batch, c.row.size(), heads, kHeadDim}, seed) * 3;
}

// In float64, of inputs that were rounded to `dtype`.
inline Attended golden_of(const RingCase& c, at::ScalarType dtype = at::kDouble) {
  at::set_num_threads(1);  // small tensors: more threads wait for each other longer than they work
  const auto full = [&](int64_t heads, int64_t seed) {
    return ring_tensor(c, heads, seed).to(dtype).to(at::kDouble);
  };
  const at::Tensor q = full(c.heads, 1).requires_grad_();
  const at::Tensor k = full(c.kv_heads, 2).requires_grad_();
  const at::Tensor v = full(c.kv_heads, 3).requires_grad_();
  const at::Tensor out = plain_attention(q, k, v, c.row, c.rule);
  out.backward(full(c.heads, 4));
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

// One rank's part, in `dtype`.
inline Attended attend_on_rank(const RingCase& c, Communicator& cp,
                               at::ScalarType dtype = at::kDouble) {
  const SequenceLayout layout =
      SequenceLayout::packed(c.row.cu_seqlens(), c.row.cu_seqlens_padded(), cp.size(), c.kind);
  const auto local = [&](int64_t heads, int64_t seed) {
    return sequence_shard(ring_tensor(c, heads, seed).to(dtype), layout, cp.rank(), 1);
  };
  const at::Tensor q = local(c.heads, 1).requires_grad_();
  const at::Tensor k = local(c.kv_heads, 2).requires_grad_();
  const at::Tensor v = local(c.kv_heads, 3).requires_grad_();
  const at::Tensor out = ring_attention(q, k, v, layout, cp,
                                        {.rotation = c.rotation,
                                         .rule = {.causal = c.rule.causal, .window = c.rule.window},
                                         .tile_length = c.tile_length});
  out.backward(local(c.heads, 4));
  return {out.detach(), q.grad(), k.grad(), v.grad()};
}

using RunRanks = std::function<void(const Mesh&, const RankFunction&)>;

inline std::vector<Attended> attend_on_all(const RingCase& c, int64_t cp, const RunRanks& run,
                                           at::ScalarType dtype = at::kDouble) {
  std::vector<Attended> results(static_cast<size_t>(cp));
  run(Mesh({{"cp", cp}}), [&](MeshComm& comm, int64_t rank) {
    results[static_cast<size_t>(rank)] = attend_on_rank(c, comm.along("cp"), dtype);
  });
  return results;
}

// "" when every rank has the golden's part of the output and of all three gradients.
inline std::string ring_difference(const RingCase& c, int64_t cp, const RunRanks& run,
                                   at::ScalarType dtype = at::kDouble, double tolerance = 1e-12) {
  const Attended golden = golden_of(c, dtype);
  const SequenceLayout layout =
      SequenceLayout::packed(c.row.cu_seqlens(), c.row.cu_seqlens_padded(), cp, c.kind);
  const std::vector<Attended> ranks = attend_on_all(c, cp, run, dtype);
  // A gradient that is 0 by algebra (one key alone) is judged against the rounding of the others.
  double largest = 0;
  for (const at::Tensor& one : {golden.out, golden.grad_q, golden.grad_k, golden.grad_v}) {
    largest = std::max(largest, one.abs().max().item<double>());
  }
  std::string text;
  for (int64_t rank = 0; rank < cp; ++rank) {
    const Attended& actual = ranks[static_cast<size_t>(rank)];
    const auto compare = [&](const char* name, const at::Tensor& full, const at::Tensor& part) {
      const at::Tensor want = sequence_shard(full, layout, rank, 1);
      std::string wrong = part.scalar_type() == dtype ? "" : "another dtype";
      if (wrong.empty()) {
        wrong = difference(want, part.to(at::kDouble), tolerance,
                           std::max(full.abs().max().item<double>(), 0.01 * largest));
      }
      if (wrong.empty()) return;
      text += std::string(name) + " of rank " + std::to_string(rank) + " " + wrong + "\n";
    };
    compare("out", golden.out, actual.out);
    compare("grad_q", golden.grad_q, actual.grad_q);
    compare("grad_k", golden.grad_k, actual.grad_k);
    compare("grad_v", golden.grad_v, actual.grad_v);
  }
  return text;
}

}  // namespace shardproof::tests
