#include "golden/extra_heads.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "golden/losses.h"
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

// The layer of another slot, which must stay alive. Routes are chosen by each slot itself.
class Repeated : public Layer {
 public:
  explicit Repeated(Layer& first) : first_(first) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    return first_.forward(inputs, context);
  }
  std::vector<ParameterPtr> parameters() const override { return first_.parameters(); }

 private:
  Layer& first_;
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

// [B, S, E] -> the output of attention [B, S, H*D].
at::Tensor attention_output(const NamedSlots& at_slot, const at::Tensor& x,
                            const ModelConfig& config, const at::Tensor& table) {
  const auto heads = [&](const std::string& part) {
    return at_slot("self_attn." + part, {x}).unflatten(2, {-1, config.head_dim});
  };
  const at::Tensor q = rotate(heads("q_proj"), table), k = rotate(heads("k_proj"), table);
  return at_slot("self_attn.attention", {q, k, heads("v_proj")});
}

// As above, over a latent of keys and values. All of q, k and v are as wide as the widest.
at::Tensor latent_attention_output(const NamedSlots& at_slot, const at::Tensor& x,
                                   const ModelConfig& config, const at::Tensor& table) {
  const LatentSizes& sizes = config.latent;
  const int64_t count = config.num_attention_heads, all = std::max(config.head_dim, sizes.value);
  const auto part = [&](const std::string& name, const at::Tensor& input) {
    return at_slot("self_attn." + name, {input});
  };
  const auto joined = [&](const std::vector<at::Tensor>& parts) {
    const at::Tensor whole = at::cat(parts, -1);
    return at::cat({whole, at::zeros({x.size(0), x.size(1), count, all - whole.size(-1)},
                                     whole.options().requires_grad(false))},
                   -1);
  };
  const at::Tensor q_in =
      sizes.q_rank > 0 ? part("q_a_layernorm", part("q_a_proj", x)) : at::Tensor();
  const std::vector<at::Tensor> q = (sizes.q_rank > 0 ? part("q_b_proj", q_in) : part("q_proj", x))
                                        .unflatten(2, {count, -1})
                                        .split_with_sizes({sizes.nope, sizes.rope}, -1);
  const std::vector<at::Tensor> down =
      part("kv_a_proj_with_mqa", x).split_with_sizes({sizes.kv_rank, sizes.rope}, -1);
  const std::vector<at::Tensor> up = part("kv_b_proj", part("kv_a_layernorm", down[0]))
                                         .unflatten(2, {count, -1})
                                         .split_with_sizes({sizes.nope, sizes.value}, -1);
  const at::Tensor key = rotate(part("rotary_key", down[1]).unsqueeze(2), table, sizes.interleaved);
  const at::Tensor mixed =
      at_slot("self_attn.attention",
              {joined({q[0], rotate(q[1], table, sizes.interleaved)}),
               joined({up[0], at::cat(std::vector<at::Tensor>(count, key), 2)}), joined({up[1]})});
  return mixed.unflatten(2, {count, all}).slice(-1, 0, sizes.value).flatten(2);
}

at::Tensor mlp_output(const NamedSlots& at_slot, const std::string& name, const at::Tensor& x) {
  const at::Tensor gate = at_slot(name + ".gate_proj", {x}), up = at_slot(name + ".up_proj", {x});
  return at_slot(name + ".down_proj", {at_slot(name + ".activation", {gate, up})});
}

// Of experts, and of a shared MLP without a gate.
at::Tensor experts_output(const NamedSlots& at_slot, const at::Tensor& x,
                          const ModelConfig& config) {
  const std::string router = config.traits().router;
  const at::Tensor logits = at_slot(router, {x}), ids = at_slot(router + ".ids", {logits});
  const at::Tensor weights = at_slot(router + ".weights", {logits, ids});
  const at::Tensor routed = at_slot("mlp.experts", {x, ids, weights});
  return at_slot("mlp.shared_expert_sum",
                 {routed, mlp_output(at_slot, config.traits().shared_expert, x)});
}

at::Tensor layer_output(const NamedSlots& at_slot, const at::Tensor& x, const ModelConfig& config,
                        const at::Tensor& table, bool experts) {
  const at::Tensor normed = at_slot("input_layernorm", {x});
  const at::Tensor mixed = config.traits().latent_attention
                               ? latent_attention_output(at_slot, normed, config, table)
                               : attention_output(at_slot, normed, config, table);
  const at::Tensor middle =
      at_slot("attention_residual", {x, at_slot("self_attn.o_proj", {mixed})});
  const at::Tensor mlp_in = at_slot("post_attention_layernorm", {middle});
  return at_slot("mlp_residual", {middle, experts ? experts_output(at_slot, mlp_in, config)
                                                  : mlp_output(at_slot, "mlp", mlp_in)});
}

}  // namespace

void repeat_first_head(Decoder& model) {
  const ModelConfig& config = model.config();
  if (!config.repeats_extra_layer) return;
  for (int64_t depth = 2; depth <= config.extra_heads; ++depth) {
    for (const SlotName& part : layer_slots(config, config.num_hidden_layers)) {
      const auto slot_of = [&](int64_t head) -> Slot& {
        const int64_t layer = config.num_hidden_layers + head - 1;
        return model.slot(fmt::format("model.layers.{}.{}", layer, part.name));
      };
      if (slot_of(1).layer->parameters().empty() || part.role == SlotRole::kSelection) continue;
      slot_of(depth).layer = std::make_unique<Repeated>(*slot_of(1).layer);
    }
  }
}

std::vector<at::Tensor> dense_head_logits(Decoder& model, const at::Tensor& stream,
                                          const Batch& batch, const StepContext& context) {
  const ModelConfig& config = model.config();
  const at::Tensor table = rotary_table(
      context.positions, inverse_frequencies(config).to(wider_type(stream.scalar_type())),
      config.rope_scaling.attention_factor);
  std::vector<at::Tensor> logits;
  at::Tensor x = stream;
  for (int64_t depth = 1; depth <= config.extra_heads; ++depth) {
    const int64_t layer = config.num_hidden_layers + depth - 1;
    const NamedSlots at_slot(model, layer, context);
    const at::Tensor embedded = at_slot("embed_tokens", {tokens_behind(batch, depth)});
    const at::Tensor both =
        at::cat({at_slot("enorm", {embedded}), at_slot("hnorm", {x})}, /*dim=*/2);
    x = at_slot("shared_head.norm", {layer_output(at_slot, at_slot("eh_proj", {both}), config,
                                                  table, config.has_experts(layer))});
    logits.push_back(at_slot("shared_head.head", {x}));
  }
  return logits;
}

at::Tensor dense_head_logprobs(const at::Tensor& logits, const Batch& batch, int64_t depth,
                               const at::Tensor& moves) {
  const at::Tensor all = dense_log_softmax(logits, moves);
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
