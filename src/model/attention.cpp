// Causal attention over the given heads: scores, mask, softmax, weighted sum.
//
//   q        [B, S, H, D]      H is a multiple of H_kv: query head h uses kv head h / (H / H_kv)
//   k, v     [B, S, H_kv, D]
//   returns  [B, S, H*D]       in q's dtype; everything between is in the wider type
//
// Each head may have a sink: a further logit in its softmax, without a value.
//
// A query sees at most the keys up to itself: with a window W only the last W of them, in a packed
// row (StepContext::sequence_ids) only those of its own sequence.
//
// The H / H_kv query heads of one kv head are rows of one matrix product, so k and v are not
// repeated. The queries are processed in blocks of positions, each with all keys that one of them
// sees, and only the scores of one block exist at a time. The forward keeps only q, k and v; the
// backward recomputes the weights of each block (Rabe and Staats, arXiv:2112.05682).
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.h"
#include "model/decoder.h"
#include "tensor/function.h"

namespace shardproof {
namespace {

// Which keys a query sees, and the scale of their scores.
struct AttentionRule {
  double scale;
  int64_t window;           // 0: none
  at::Tensor sequence_ids;  // [S] or undefined
};

// Queries [first, first + count) of each head, and the keys that at least one of them sees.
struct QueryBlock {
  int64_t first, count;
  int64_t first_key, keys;
};

std::vector<QueryBlock> query_blocks(const at::Tensor& q, const AttentionRule& rule) {
  const int64_t seq_len = q.size(1);
  const auto element = static_cast<int64_t>(c10::elementSize(wider_type(q.scalar_type())));
  const int64_t most = attention_block_rows(q.size(0), seq_len, q.size(2), element);
  std::vector<QueryBlock> blocks;
  for (int64_t first = 0; first < seq_len; first += most) {
    const int64_t count = std::min(most, seq_len - first);
    const int64_t first_key = rule.window > 0 ? std::max<int64_t>(0, first - rule.window + 1) : 0;
    blocks.push_back({first, count, first_key, first + count - first_key});
  }
  return blocks;
}

// [count, keys]: true where a query (row) must not see a key (column).
at::Tensor hidden_keys(const QueryBlock& block, const AttentionRule& rule, at::Device device) {
  const at::Tensor all =
      at::ones({block.count, block.keys}, at::TensorOptions().dtype(at::kBool).device(device));
  const int64_t own_key = block.first - block.first_key;  // key of the first query
  at::Tensor hidden = all.triu(own_key + 1);
  if (rule.window > 0) hidden = hidden.logical_or_(all.tril(own_key - rule.window));
  if (!rule.sequence_ids.defined()) return hidden;
  const at::Tensor ids = rule.sequence_ids.to(device);
  const at::Tensor of_keys = ids.narrow(0, block.first_key, block.keys),
                   of_queries = ids.narrow(0, block.first, block.count);
  return hidden.logical_or(of_keys.unsqueeze(0).ne(of_queries.unsqueeze(1)));
}

// [B, S, H_kv, D] as [B, H_kv, S, D], in the wider type.
at::Tensor by_head(const at::Tensor& x) {
  return x.to(wider_type(x.scalar_type())).transpose(1, 2);
}

// The queries' rows of x [B, S, H, D] as [B, H_kv, group * count, D]; the rows of one kv head
// follow each other.
at::Tensor query_rows(const at::Tensor& x, const QueryBlock& block, int64_t kv_heads) {
  const int64_t group = x.size(2) / kv_heads;
  return by_head(x.narrow(1, block.first, block.count))
      .reshape({x.size(0), kv_heads, group * block.count, x.size(3)});
}

// Writes such rows to their position in x [B, S, H, D].
void put_rows(const at::Tensor& x, const QueryBlock& block, const at::Tensor& rows) {
  x.narrow(1, block.first, block.count)
      .copy_(rows.view({x.size(0), x.size(2), block.count, x.size(3)}).transpose(1, 2));
}

at::Tensor key_rows(const at::Tensor& by_head, const QueryBlock& block) {
  return by_head.narrow(2, block.first_key, block.keys);
}

// rows [B, H_kv, group * count, D], k of the block -> [B, H_kv, group * count, keys]
// A further column is the weight of the sink, if there are sinks.
at::Tensor weights_of(const at::Tensor& rows, const at::Tensor& k, const at::Tensor& sinks,
                      const QueryBlock& block, const AttentionRule& rule) {
  const at::Tensor scores = at::matmul(rows, k.transpose(2, 3)).mul_(rule.scale);
  const int64_t group = rows.size(2) / block.count;
  scores.view({rows.size(0), rows.size(1), group, block.count, block.keys})
      .masked_fill_(hidden_keys(block, rule, rows.device()),
                    -std::numeric_limits<double>::infinity());
  if (!sinks.defined()) return scores.softmax(-1);
  const at::Tensor column = sinks.to(scores.scalar_type())
                                .view({1, rows.size(1), group, 1, 1})
                                .expand({rows.size(0), rows.size(1), group, block.count, 1})
                                .reshape({rows.size(0), rows.size(1), rows.size(2), 1});
  return at::cat({scores, column}, -1).softmax(-1);
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& sinks, const AttentionRule& rule) {
  const at::Tensor out = at::empty(q.sizes(), q.options());
  const at::Tensor keys = by_head(k).contiguous(), values = by_head(v).contiguous();
  for (const QueryBlock& block : query_blocks(q, rule)) {
    const at::Tensor weights =
        weights_of(query_rows(q, block, k.size(2)), key_rows(keys, block), sinks, block, rule)
            .narrow(-1, 0, block.keys);
    put_rows(out, block, at::matmul(weights, key_rows(values, block)));
  }
  return out;
}

struct Gradients {
  at::Tensor q, k, v, sinks;
};

Gradients attend_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                          const at::Tensor& v, const at::Tensor& sinks, const AttentionRule& rule) {
  const at::Tensor keys = by_head(k).contiguous(), values = by_head(v).contiguous();
  const at::Tensor grad_sinks =
      sinks.defined() ? at::zeros(sinks.sizes(), keys.options()) : at::Tensor();
  const at::Tensor grad_q = at::empty(q.sizes(), q.options()),
                   grad_k = at::zeros(keys.sizes(), keys.options()),
                   grad_v = at::zeros(keys.sizes(), keys.options());
  for (const QueryBlock& block : query_blocks(q, rule)) {
    const at::Tensor rows = query_rows(q, block, k.size(2)),
                     grad_rows = query_rows(grad_out, block, k.size(2));
    const at::Tensor block_keys = key_rows(keys, block);
    const at::Tensor all_weights = weights_of(rows, block_keys, sinks, block, rule);
    const at::Tensor weights = all_weights.narrow(-1, 0, block.keys).contiguous();
    key_rows(grad_v, block).add_(at::matmul(weights.transpose(2, 3), grad_rows));
    const at::Tensor grad_weights = at::matmul(grad_rows, key_rows(values, block).transpose(2, 3));
    const at::Tensor grad_scores =
        at::_softmax_backward_data(grad_weights, weights, -1, weights.scalar_type())
            .mul_(rule.scale);
    put_rows(grad_q, block, at::matmul(grad_scores, block_keys));
    if (sinks.defined()) {
      const at::Tensor of_rows =
          all_weights.select(-1, block.keys) * (weights * grad_weights).sum(-1);
      grad_sinks.sub_(
          of_rows.view({q.size(0), q.size(2), block.count}).sum(at::IntArrayRef({0, 2})));
    }
    key_rows(grad_k, block).add_(at::matmul(grad_scores.transpose(2, 3), rows));
  }
  return {grad_q, grad_k.transpose(1, 2).to(k.scalar_type()),
          grad_v.transpose(1, 2).to(v.scalar_type()),
          sinks.defined() ? grad_sinks.to(sinks.scalar_type()) : sinks};
}

struct AttentionFunction : Function<AttentionFunction> {
  static at::Tensor forward(FunctionContext* ctx, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const std::optional<at::Tensor>& some_sinks,
                            const AttentionRule& rule) {
    const at::Tensor sinks = some_sinks.value_or(at::Tensor());
    ctx->save_for_backward({q, k, v, sinks});
    ctx->saved_data["scale"] = rule.scale;
    ctx->saved_data["window"] = rule.window;
    ctx->saved_data["sequence_ids"] = rule.sequence_ids;
    return attend(q, k, v, sinks, rule);
  }

  static std::vector<at::Tensor> backward(FunctionContext* ctx, std::vector<at::Tensor> grads) {
    SHARDPROOF_ASSERT(!at::GradMode::is_enabled(), "attention has no second derivative");
    const auto saved = ctx->get_saved_variables();
    const AttentionRule rule{.scale = ctx->saved_data["scale"].toDouble(),
                             .window = ctx->saved_data["window"].toInt(),
                             .sequence_ids = ctx->saved_data["sequence_ids"].toTensor()};
    const Gradients out = attend_backward(grads[0], saved[0], saved[1], saved[2], saved[3], rule);
    return {out.q, out.k, out.v, out.sinks, at::Tensor()};
  }
};

}  // namespace

int64_t attention_block_rows(int64_t batch, int64_t seq_len, int64_t heads, int64_t element) {
  constexpr int64_t kBytes = 256 << 10, kFewest = 32;
  const int64_t row = std::max<int64_t>(1, batch * heads * seq_len * element);
  return std::max(kFewest, kBytes / row);
}

std::vector<ParameterPtr> CausalAttention::parameters() const {
  if (!sinks) return {};
  return {sinks};
}

at::Tensor sinks_of(at::TensorList inputs, const ParameterPtr& sinks) {
  if (inputs.size() > 3) return inputs[3];
  return sinks ? sinks->tensor : at::Tensor();
}

at::Tensor CausalAttention::forward(at::TensorList inputs, const StepContext& context) {
  const at::Tensor& q = inputs[0];
  const int64_t seq_len = q.size(1), heads = q.size(2), head_dim = q.size(3),
                kv_heads = inputs[1].size(2);
  SHARDPROOF_ASSERT(kv_heads > 0 && heads % kv_heads == 0,
                    "query heads must share kv heads evenly");
  AttentionRule rule{
      .scale = options_.scale > 0 ? options_.scale : 1.0 / std::sqrt(static_cast<double>(head_dim)),
      .window = options_.window,
      .sequence_ids = context.sequence_ids};
  if (rule.sequence_ids.defined()) {
    SHARDPROOF_ASSERT(rule.sequence_ids.numel() == seq_len, "one sequence id per token of the row");
    rule.sequence_ids = rule.sequence_ids.view({seq_len});
  }
  const at::Tensor own_sinks = sinks_of(inputs, sinks);
  SHARDPROOF_ASSERT(!own_sinks.defined() || own_sinks.numel() == heads, "a sink for each head");
  const auto some_sinks = own_sinks.defined() ? std::optional(own_sinks) : std::nullopt;
  return AttentionFunction::apply(q, inputs[1], inputs[2], some_sinks, rule)
      .view({q.size(0), seq_len, heads * head_dim});
}

}  // namespace shardproof
