#include "tests/unit/parallel/cp/ring_cases.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace shardproof::tests {

Row padded_row(const std::vector<int64_t>& lengths, ContextLayout kind, int64_t cp) {
  Row row{.lengths = lengths, .padded = lengths};
  const int64_t multiple = sequence_multiple(kind, cp);
  for (int64_t& padded : row.padded) padded = (padded + multiple - 1) / multiple * multiple;
  if (kind == ContextLayout::kRow && row.size() % cp != 0) {
    row.padded.back() += cp - row.size() % cp;
  }
  return row;
}

at::Tensor ring_tensor(const RingCase& c, int64_t heads, int64_t seed) {
  return random_tensor({c.batch, c.row.size(), heads, kHeadDim}, seed) * 3;
}

Attended golden_of(const RingCase& c, at::ScalarType dtype) {
  at::set_num_threads(1);  // on small tensors, more threads are slower
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

Attended attend_on_rank(const RingCase& c, Communicator& cp, at::ScalarType dtype) {
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

std::vector<Attended> attend_on_all(const RingCase& c, int64_t cp, const RunRanks& run,
                                    at::ScalarType dtype) {
  std::vector<Attended> results(static_cast<size_t>(cp));
  run(Mesh({{"cp", cp}}), [&](MeshComm& comm, int64_t rank) {
    results[static_cast<size_t>(rank)] = attend_on_rank(c, comm.along("cp"), dtype);
  });
  return results;
}

std::string ring_difference(const RingCase& c, int64_t cp, const RunRanks& run,
                            at::ScalarType dtype, double tolerance) {
  const Attended golden = golden_of(c, dtype);
  const SequenceLayout layout =
      SequenceLayout::packed(c.row.cu_seqlens(), c.row.cu_seqlens_padded(), cp, c.kind);
  const std::vector<Attended> ranks = attend_on_all(c, cp, run, dtype);
  // A gradient that is 0 by algebra (one key alone) is compared at the scale of the others.
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
