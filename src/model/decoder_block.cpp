// Makes the plain layers of a decoder over its weights.
#include "model/decoder_block.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/experts.h"

namespace shardproof {

ParameterPtr Decoder::parameter(const std::string& name) const {
  const auto found = weights_->find(name);
  if (found == weights_->end()) {
    throw_bad_input(fmt::format("the weights have no tensor '{}'", name),
                    "add it, or mend the config that asks for it");
  }
  ParameterPtr& one = parameters_[name];
  if (!one) {
    one = std::make_shared<Parameter>(Parameter{
        .name = name, .tensor = found->second, .global_shape = found->second.sizes().vec()});
  }
  return one;
}

// A weight that joins so many matrices of equal size.
ParameterPtr Decoder::hidden_matrix(const std::string& name, int64_t joined) const {
  ParameterPtr weight = parameter(name);
  const std::vector<int64_t>& shape = weight->global_shape;
  const int64_t rows = shape.size() < 2 ? 0 : shape[shape.size() - 2];
  weight->matrix_rows.assign(static_cast<size_t>(joined), rows / joined);
  return weight;
}

std::unique_ptr<Layer> Decoder::linear(const std::string& name, bool bias) const {
  return std::make_unique<Linear>(hidden_matrix(name + ".weight"),
                                  bias ? parameter(name + ".bias") : nullptr);
}

std::unique_ptr<Layer> Decoder::make_layer(const std::string& prefix, const std::string& part,
                                           int64_t index, SlotKind kind) const {
  const std::string name = prefix + part;
  switch (kind) {
    case SlotKind::kLinear:
      return linear(name, config_.has_bias(part));
    case SlotKind::kNorm:
      return std::make_unique<RmsNorm>(parameter(name + ".weight"), config_.eps_of_norm(part),
                                       config_.traits().unit_offset_norm);
    case SlotKind::kAttention:
      return std::make_unique<CausalAttention>(
          AttentionOptions{.scale = config_.score_scale(),
                           .window = config_.window_of_layer(index)},
          config_.traits().sinks ? parameter(prefix + "self_attn.sinks") : nullptr);
    case SlotKind::kActivation:
      return std::make_unique<GatedActivation>(config_.activation);
    case SlotKind::kRouter:
      return std::make_unique<Router>(
          hidden_matrix(name + ".weight"),
          config_.traits().router_bias ? parameter(name + ".bias") : nullptr);
    case SlotKind::kSelection:
      return std::make_unique<ExpertSelection>(config_.router, selection_bias(prefix));
    case SlotKind::kRouteWeights:
      return std::make_unique<RouteWeights>(config_.router);
    case SlotKind::kExperts:
      return make_experts(name);
    case SlotKind::kRotaryKey:
      return std::make_unique<RotaryKey>();
    case SlotKind::kSharedSum:
      return std::make_unique<SharedSum>();
    case SlotKind::kEmbedding:
    case SlotKind::kLmHead:
      return make_shared(kind);
    default:
      return std::make_unique<Residual>();
  }
}

std::unique_ptr<Layer> Decoder::make_shared(SlotKind kind) const {
  if (kind == SlotKind::kLmHead) return std::make_unique<Linear>(head_, nullptr);
  return std::make_unique<Embedding>(embedding_, config_.pad_token_id);
}

ParameterPtr Decoder::selection_bias(const std::string& prefix) const {
  if (!config_.router.selection_bias) return nullptr;
  ParameterPtr bias = parameter(prefix + config_.traits().router + ".e_score_correction_bias");
  bias->trainable = false;
  return bias;
}

std::unique_ptr<Layer> Decoder::make_experts(const std::string& name) const {
  const ExpertForm form = config_.expert_form();
  const auto bias = [&](const char* part) {
    return form.columns_in_turn ? parameter(name + part) : nullptr;
  };
  return std::make_unique<Experts>(hidden_matrix(name + ".gate_up_proj", /*joined=*/2),
                                   hidden_matrix(name + ".down_proj"), form,
                                   bias(".gate_up_proj_bias"), bias(".down_proj_bias"));
}

Decoder::Block Decoder::make_block(int64_t index) {
  const std::string layer = fmt::format("model.layers.{}.", index);
  const int64_t with_weights = std::min(index, config_.layers_with_weights() - 1);
  const std::string weights = fmt::format("model.layers.{}.", with_weights);
  Block block{};
  for (const auto& [part, role] : layer_slots(config_, index)) {
    Slot* slot = add(layer + part, role, make_layer(weights, part, index, kind_of(role)));
    if (role != SlotRole::kLmHead) block.slots.push_back(slot);
  }
  const auto part = [&](const std::string& name) {
    const auto found = by_name_.find(layer + name);
    return found == by_name_.end() ? nullptr : found->second;
  };
  const bool output_norms = config_.traits().output_norms;
  block.sliding = config_.window_of_layer(index) > 0;
  block.input_layernorm = part("input_layernorm");
  block.q_proj = part(config_.latent.q_rank > 0 ? "self_attn.q_b_proj" : "self_attn.q_proj");
  block.q_down = part("self_attn.q_a_proj");
  block.q_down_norm = part("self_attn.q_a_layernorm");
  block.kv_down = part("self_attn.kv_a_proj_with_mqa");
  block.kv_down_norm = part("self_attn.kv_a_layernorm");
  block.kv_up = part("self_attn.kv_b_proj");
  block.rotary_key = part("self_attn.rotary_key");
  block.k_proj = part("self_attn.k_proj");
  block.v_proj = part("self_attn.v_proj");
  block.q_norm = part("self_attn.q_norm");
  block.k_norm = part("self_attn.k_norm");
  block.attention = part("self_attn.attention");
  block.o_proj = part("self_attn.o_proj");
  block.attention_norm = output_norms ? part("post_attention_layernorm") : nullptr;
  block.attention_residual = part("attention_residual");
  block.mlp_input_norm =
      part(output_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm");
  const std::string mlp =
      config_.has_shared_expert(index) ? config_.traits().shared_expert + std::string(".") : "mlp.";
  block.gate_proj = part(mlp + "gate_proj");
  block.up_proj = part(mlp + "up_proj");
  block.activation = part(mlp + "activation");
  block.down_proj = part(mlp + "down_proj");
  const std::string router = config_.traits().router;
  block.router = part(router);
  block.selection = part(router + ".ids");
  block.route_weights = part(router + ".weights");
  block.experts = part("mlp.experts");
  block.shared_gate = part("mlp.shared_expert_gate");
  block.shared_sum = part("mlp.shared_expert_sum");
  block.mlp_norm = part("post_feedforward_layernorm");
  block.mlp_residual = part("mlp_residual");
  block.embed_tokens = part("embed_tokens");
  block.embedding_norm = part("enorm");
  block.stream_norm = part("hnorm");
  block.join = part("eh_proj");
  block.head_norm = part("shared_head.norm");
  block.head = part("shared_head.head");
  return block;
}

}  // namespace shardproof
