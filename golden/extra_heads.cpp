#include "golden/extra_heads.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "model/precision.h"
#include "model/rope.h"

namespace shardproof::golden {
namespace {

// Calls the slots of one layer by their names.
class NamedSlots {
 public:
  NamedSlots(Decoder& model, int64_t layer, const StepContext& context)
      : model_(model), prefix_(fmt::format("model.layers.{}.", layer)), context_(context) {}
  at::Tensor operator()(const std::string& part, std::initializer_list<at::Tensor> inputs) const {
    const std::vector<at::Tensor> all = inputs;
    return model_.slot(prefix_ + part)(all, context_);
  }

 private:
  Decoder& model_;
  std::string prefix_;
  const StepContext& context_;
};

std::vector<int64_t> lengths_of(const Batch& batch) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < batch.size(); ++i) {
    lengths.push_back(batch.input_lengths[i].item<int64_t>());
  }
  return lengths;
}

at::Tensor tokens_behind(const Batch& batch, int64_t distance) {
  const std::vector<int64_t> lengths = lengths_of(batch);
  at::Tensor tokens = at::zeros_like(batch.input_ids);
  for (int64_t sample = 0; sample < batch.size(); ++sample) {
    for (int64_t t = 0; t + distance < lengths[static_cast<size_t>(sample)]; ++t) {
      tokens[sample][t].copy_(batch.input_ids[sample][t + distance]);
    }
  }
  return tokens;
}

at::Tensor layer_output(const NamedSlots& at_slot, const at::Tensor& x, const ModelConfig& config,
                        const at::Tensor& table) {
  const auto heads = [&](const std::string& part, const at::Tensor& input) {
    return at_slot(part, {input}).unflatten(2, {-1, config.head_dim});
  };
  const at::Tensor normed = at_slot("input_layernorm", {x});
  const at::Tensor q = rotate(heads("self_attn.q_proj", normed), table);
  const at::Tensor k = rotate(heads("self_attn.k_proj", normed), table);
  const at::Tensor v = heads("self_attn.v_proj", normed);
  const at::Tensor mixed = at_slot("self_attn.attention", {q, k, v});
  const at::Tensor middle =
      at_slot("attention_residual", {x, at_slot("self_attn.o_proj", {mixed})});
  const at::Tensor mlp_in = at_slot("post_attention_layernorm", {middle});
  const at::Tensor gated = at_slot(
      "mlp.activation", {at_slot("mlp.gate_proj", {mlp_in}), at_slot("mlp.up_proj", {mlp_in})});
  return at_slot("mlp_residual", {middle, at_slot("mlp.down_proj", {gated})});
}

}  // namespace

std::vector<at::Tensor> dense_head_logits(Decoder& model, const at::Tensor& stream,
                                          const Batch& batch, const StepContext& context) {
  const ModelConfig& config = model.config();
  const at::Tensor table = rotary_table(
      context.positions, inverse_frequencies(config).to(wider_type(stream.scalar_type())),
      config.rope_scaling.attention_factor);
  std::vector<at::Tensor> logits;
  at::Tensor x = stream;
  for (int64_t depth = 1; depth <= config.extra_heads; ++depth) {
    const NamedSlots at_slot(model, config.num_hidden_layers + depth - 1, context);
    const at::Tensor embedded = at_slot("embed_tokens", {tokens_behind(batch, depth)});
    const at::Tensor both =
        at::cat({at_slot("enorm", {embedded}), at_slot("hnorm", {x})}, /*dim=*/2);
    x = at_slot("shared_head.norm",
                {layer_output(at_slot, at_slot("eh_proj", {both}), config, table)});
    logits.push_back(at_slot("shared_head.head", {x}));
  }
  return logits;
}

at::Tensor dense_head_logprobs(const at::Tensor& logits, const Batch& batch, int64_t depth) {
  const at::Tensor all = logits.to(wider_type(logits.scalar_type())).log_softmax(-1);
  const std::vector<int64_t> lengths = lengths_of(batch);
  std::vector<at::Tensor> rows;
  for (int64_t sample = 0; sample < batch.size(); ++sample) {
    const int64_t length = lengths[static_cast<size_t>(sample)];
    std::vector<at::Tensor> row;
    for (int64_t t = 0; t < batch.seq_len(); ++t) {
      const bool predicted = t > depth && t < length;
      row.push_back(predicted
                        ? all[sample][t - depth - 1][batch.input_ids[sample][t].item<int64_t>()]
                        : at::zeros({}, all.options()));
    }
    rows.push_back(at::stack(row));
  }
  return at::stack(rows) + all.sum() * 0;  // the same where none is predicted
}

HeadLosses dense_head_losses(const std::vector<at::Tensor>& logprobs, const Batch& batch,
                             double weight) {
  HeadLosses losses;
  const auto heads = static_cast<double>(logprobs.size());
  for (size_t i = 0; i < logprobs.size(); ++i) {
    const int64_t first = 2 + static_cast<int64_t>(i);  // of a sample that the head predicts
    const at::Tensor mask = batch.loss_mask().to(logprobs[i].options());
    at::Tensor sum = logprobs[i].sum() * 0;  // a gradient of 0 where no token counts
    double tokens = 0;
    for (int64_t t = first; t < batch.seq_len(); ++t) {
      sum = sum - (mask.select(1, t) * logprobs[i].select(1, t)).sum();
      tokens += batch.loss_mask().select(1, t).sum().item<double>();
    }
    const at::Tensor mean = tokens == 0 ? sum * 0 : sum / tokens;
    losses.values[fmt::format("mtp_loss.{}", i + 1)] = mean.item<double>();
    const at::Tensor addend = mean * weight / heads;
    losses.sum = losses.sum.defined() ? losses.sum + addend : addend;
  }
  return losses;
}

}  // namespace shardproof::golden
