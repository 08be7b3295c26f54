// Causal attention over the heads it is given, written out: scores, mask, softmax, weighted sum.
//
//   q        [B, S, H, D]      H is a multiple of H_kv: query head h uses kv head h / (H / H_kv)
//   k, v     [B, S, H_kv, D]
//   returns  [B, S, H*D]       in q's dtype; everything between is in the wider type
//
// A query sees the keys up to itself, with a window W only the last W of them; of a packed row
// (StepContext::sequence_ids) only those of its own sequence.
//
// The H / H_kv query heads of one kv head are rows of one matrix product, so k and v are not
// repeated.
#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "model/decoder.h"

namespace shardproof {
namespace {

// [S, S]: true where a query (row) must not see a key (column).
at::Tensor hidden_keys(int64_t seq_len, int64_t window, const at::Tensor& sequence_ids,
                       at::Device device) {
  const at::Tensor all =
      at::ones({seq_len, seq_len}, at::TensorOptions().dtype(at::kBool).device(device));
  at::Tensor hidden = all.triu(1);
  if (window > 0) hidden = hidden.logical_or_(all.tril(-window));
  if (!sequence_ids.defined()) return hidden;
  SHARDPROOF_ASSERT(sequence_ids.numel() == seq_len, "one sequence id per token of the row");
  const at::Tensor ids = sequence_ids.view({seq_len}).to(device);
  return hidden.logical_or(ids.unsqueeze(0).ne(ids.unsqueeze(1)));
}

}  // namespace

at::Tensor CausalAttention::forward(at::TensorList inputs, const StepContext& context) {
  const at::ScalarType dtype = inputs[0].scalar_type(), wide = wider_type(dtype);
  const int64_t batch = inputs[0].size(0), seq_len = inputs[0].size(1), heads = inputs[0].size(2),
                head_dim = inputs[0].size(3), kv_heads = inputs[1].size(2);
  SHARDPROOF_ASSERT(kv_heads > 0 && heads % kv_heads == 0,
                    "query heads must share kv heads evenly");
  const int64_t group = heads / kv_heads;

  const at::Tensor q =
      inputs[0].to(wide).transpose(1, 2).reshape({batch, kv_heads, group * seq_len, head_dim});
  const at::Tensor k = inputs[1].to(wide).transpose(1, 2);  // [B, H_kv, S, D]
  const at::Tensor v = inputs[2].to(wide).transpose(1, 2);

  const double scale =
      options_.scale > 0 ? options_.scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
  const at::Tensor scores =
      (at::matmul(q, k.transpose(2, 3)) * scale).view({batch, kv_heads, group, seq_len, seq_len});
  const at::Tensor weights =
      scores
          .masked_fill(hidden_keys(seq_len, options_.window, context.sequence_ids, q.device()),
                       -std::numeric_limits<double>::infinity())
          .softmax(-1)
          .view({batch, kv_heads, group * seq_len, seq_len});
  return at::matmul(weights, v)
      .view({batch, heads, seq_len, head_dim})
      .transpose(1, 2)
      .reshape({batch, seq_len, heads * head_dim})
      .to(dtype);
}

}  // namespace shardproof
