// The G query heads of a kv head are rows of one matrix product, so keys are not repeated.
#include "parallel/cp/block_attention.h"

#include <ATen/ATen.h>

#include <limits>

namespace shardproof {
namespace {

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// exp(part - whole), and 0 where no key was seen.
at::Tensor weight(const at::Tensor& part, const at::Tensor& whole) {
  return (part - whole).exp().masked_fill_(whole.eq(kMinusInfinity), 0);
}

// [B, H_kv, G, T, ..] -> the tile's queries as rows, [B, H_kv, G*T_tile, ..].
at::Tensor query_rows(const at::Tensor& tensor, const TokenTile& tile) {
  return tensor.narrow(3, tile.local_begin, tile.length).flatten(2, 3);
}

at::Tensor key_rows(const at::Tensor& tensor, const TokenTile& tile) {
  return tensor.narrow(2, tile.local_begin, tile.length);
}

// Rows -> [B, H_kv, G, T_tile, ..].
at::Tensor by_head(const at::Tensor& rows, int64_t group, const TokenTile& tile) {
  return rows.unflatten(2, {group, tile.length});
}

// Writes `value` to the elements of `scores` [B, H_kv, G*T_tile, T_k] that the tile's queries do
// not see.
void hide(at::Tensor& scores, double value, const TokenTile& queries, const TokenTile& keys,
          const AttentionRule& rule) {
  const int64_t group = scores.size(2) / queries.length;
  by_head(scores, group, queries)
      .masked_fill_(hidden_keys(queries, keys, rule, scores.device()), value);
}

PartialAttention attend_to_tile(const at::Tensor& q_rows, int64_t group, const TokenTile& queries,
                                const TokenTile& keys, const KeyBlock& block,
                                const AttentionRule& rule, Visibility seen) {
  at::Tensor scores = at::matmul(q_rows, key_rows(block.k, keys).transpose(2, 3));
  if (seen == Visibility::kSome) hide(scores, kMinusInfinity, queries, keys, rule);
  const at::Tensor largest = scores.amax(-1, /*keepdim=*/true);
  // A query that sees none of these keys: exp(-inf - 0) is 0, and log(0) is -inf.
  if (seen == Visibility::kSome) largest.masked_fill_(largest.eq(kMinusInfinity), 0);
  const at::Tensor weights = scores.sub_(largest).exp_();
  const at::Tensor sum = weights.sum(-1, /*keepdim=*/true);
  at::Tensor out = at::matmul(weights, key_rows(block.v, keys)).div_(sum);
  if (seen == Visibility::kSome) out.masked_fill_(sum.eq(0), 0);
  return {.out = by_head(out, group, queries),
          .lse = by_head((sum.log() + largest).squeeze(-1), group, queries)};
}

// Merges `part`, of the queries from `first` on, into `whole`, in place.
void merge_attention(PartialAttention& whole, const PartialAttention& part, int64_t first) {
  const int64_t length = part.lse.size(3);
  at::Tensor out = whole.out.narrow(3, first, length);
  at::Tensor lse = whole.lse.narrow(3, first, length);
  const at::Tensor merged = at::logaddexp(lse, part.lse);
  out.mul_(weight(lse, merged).unsqueeze(-1))
      .add_(part.out * weight(part.lse, merged).unsqueeze(-1));
  lse.copy_(merged);
}

}  // namespace

PartialAttention no_attention(const at::Tensor& scaled_q) {
  std::vector<int64_t> rows = scaled_q.sizes().vec();
  rows.pop_back();
  return {.out = at::zeros_like(scaled_q, at::MemoryFormat::Contiguous),
          .lse = at::full(rows, kMinusInfinity, scaled_q.options())};
}

void attend(PartialAttention& whole, const at::Tensor& scaled_q,
            const std::vector<TokenTile>& query_tiles, const KeyBlock& block,
            const AttentionRule& rule) {
  for (const TokenTile& queries : query_tiles) {
    at::Tensor rows;
    for (const TokenTile& keys : block.tiles) {
      const Visibility seen = visibility(queries, keys, rule);
      if (seen == Visibility::kNone) continue;
      if (!rows.defined()) rows = query_rows(scaled_q, queries);
      merge_attention(whole,
                      attend_to_tile(rows, scaled_q.size(2), queries, keys, block, rule, seen),
                      queries.local_begin);
    }
  }
}

namespace {

at::Tensor by_group(const at::Tensor& sinks, const at::Tensor& lse) {
  return sinks.to(lse.scalar_type()).view({1, lse.size(1), lse.size(2), 1});
}

}  // namespace

void add_sinks(PartialAttention& whole, const at::Tensor& sinks) {
  const at::Tensor merged = at::logaddexp(whole.lse, by_group(sinks, whole.lse));
  whole.out.mul_(weight(whole.lse, merged).unsqueeze(-1));
  whole.lse = merged;
}

at::Tensor grad_of_sinks(const AttentionGradient& gradient, const at::Tensor& sinks) {
  const at::Tensor weights = (by_group(sinks, gradient.lse) - gradient.lse).exp();
  return (weights * gradient.delta)
      .sum(at::IntArrayRef({0, 3}))
      .neg()
      .flatten()
      .to(sinks.scalar_type());
}

void attend_backward(AttentionGradient& gradient, at::Tensor& grad_k, at::Tensor& grad_v,
                     const std::vector<TokenTile>& query_tiles, const KeyBlock& block,
                     const AttentionRule& rule) {
  const int64_t group = gradient.scaled_q.size(2);
  for (const TokenTile& queries : query_tiles) {
    at::Tensor q, lse, grad_out, delta;
    for (const TokenTile& keys : block.tiles) {
      const Visibility seen = visibility(queries, keys, rule);
      if (seen == Visibility::kNone) continue;
      if (!q.defined()) {
        q = query_rows(gradient.scaled_q, queries);
        lse = query_rows(gradient.lse, queries).unsqueeze(-1);
        grad_out = query_rows(gradient.grad_out, queries);
        delta = query_rows(gradient.delta, queries).unsqueeze(-1);
      }
      const at::Tensor k = key_rows(block.k, keys);
      at::Tensor weights = at::matmul(q, k.transpose(2, 3)).sub_(lse).exp_();
      if (seen == Visibility::kSome) hide(weights, 0, queries, keys, rule);
      key_rows(grad_v, keys).add_(at::matmul(weights.transpose(2, 3), grad_out));
      const at::Tensor grad_scores =
          at::matmul(grad_out, key_rows(block.v, keys).transpose(2, 3)).sub_(delta).mul_(weights);
      gradient.grad_q.narrow(3, queries.local_begin, queries.length)
          .add_(by_head(at::matmul(grad_scores, k), group, queries));
      key_rows(grad_k, keys).add_(at::matmul(grad_scores.transpose(2, 3), q));
    }
  }
}

}  // namespace shardproof
