// Attention of one rank's queries to one block of keys at a time, and the merging of the results.
//
// After some blocks the queries have `out`, the attention over the keys seen so far, and `lse`, the
// logarithm of the sum of exp(score) over them. Two such results a and b are merged by:
//
//   lse = log(exp(lse_a) + exp(lse_b))     out = out_a exp(lse_a - lse) + out_b exp(lse_b - lse)
//
// so each block is computed independently, and no exp overflows. A query that has seen no key has
// out = 0 and lse = -inf.
//
// Legend: B batch, T queries of this rank, T_k keys of the block, H_kv kv heads, G query heads of
// one kv head, D head dim. Everything is in the wider type.
#pragma once

#include <ATen/core/Tensor.h>

#include "parallel/cp/visibility.h"

namespace shardproof {

struct PartialAttention {
  at::Tensor out;  // [B, H_kv, G, T, D]
  at::Tensor lse;  // [B, H_kv, G, T]
};

// The result before any block.
PartialAttention no_attention(const at::Tensor& scaled_q);

// One block of keys: the positions of its tokens, and their keys and values.
struct KeyBlock {
  std::vector<TokenTile> tiles;
  at::Tensor k, v;  // [B, H_kv, T_k, D]
};

// Adds the attention to `block` to `whole`.
//
//   scaled_q   [B, H_kv, G, T, D]   queries times the score scale
void attend(PartialAttention& whole, const at::Tensor& scaled_q,
            const std::vector<TokenTile>& query_tiles, const KeyBlock& block,
            const AttentionRule& rule);

// Adds the sinks [H], a logit of each query head that has no value, to `whole`. Call it once, after
// all blocks.
void add_sinks(PartialAttention& whole, const at::Tensor& sinks);

// The inputs of the backward of one rank's queries, and the gradient that it sums.
struct AttentionGradient {
  at::Tensor scaled_q;  // [B, H_kv, G, T, D]
  at::Tensor lse;       // [B, H_kv, G, T]      over all blocks
  at::Tensor grad_out;  // [B, H_kv, G, T, D]
  at::Tensor delta;     // [B, H_kv, G, T]      sum over D of grad_out * out
  at::Tensor grad_q;    // [B, H_kv, G, T, D]   of scaled_q, summed over the blocks so far
};

// The gradient [H] of the sinks, from this rank's queries.
at::Tensor grad_of_sinks(const AttentionGradient& gradient, const at::Tensor& sinks);

// Adds the gradients through `block` to gradient.grad_q, and to grad_k, grad_v [B, H_kv, T_k, D] in
// place. Source: Dao et al., "FlashAttention", arXiv:2205.14135, appendix B.2.
void attend_backward(AttentionGradient& gradient, at::Tensor& grad_k, at::Tensor& grad_v,
                     const std::vector<TokenTile>& query_tiles, const KeyBlock& block,
                     const AttentionRule& rule);

}  // namespace shardproof
