#include "model/decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/rope.h"
#include "tensor/shard.h"

namespace shardproof {

struct Decoder::Block {
  Slot *input_layernorm, *q_proj, *k_proj, *v_proj, *attention, *o_proj, *attention_residual;
  Slot *post_attention_layernorm, *gate_proj, *up_proj, *activation, *down_proj, *mlp_residual;
};

Decoder::Decoder(const ModelConfig& config, std::shared_ptr<const WeightMap> weights)
    : config_(config), weights_(std::move(weights)) {
  const ParameterPtr embedding = parameter("model.embed_tokens.weight");
  embed_tokens_ = add("model.embed_tokens", SlotKind::kEmbedding,
                      std::make_unique<Embedding>(embedding, config_.pad_token_id));
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) blocks_.push_back(make_block(i));
  norm_ = add("model.norm", SlotKind::kNorm,
              std::make_unique<RmsNorm>(parameter("model.norm.weight"), config_.rms_norm_eps));
  const ParameterPtr head = config_.tie_word_embeddings ? embedding : parameter("lm_head.weight");
  lm_head_ = add("lm_head", SlotKind::kLmHead, std::make_unique<Linear>(head, nullptr));
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Slot* Decoder::add(std::string name, SlotKind kind, std::unique_ptr<Layer> layer) {
  slots_.push_back(std::make_unique<Slot>(Slot{name, kind, std::move(layer)}));
  by_name_[name] = slots_.back().get();
  return slots_.back().get();
}

ParameterPtr Decoder::parameter(const std::string& name) const {
  const auto found = weights_->find(name);
  if (found == weights_->end()) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("the weights have no tensor '{}'", name),
                 .fix = "add it, or mend the config that asks for it"});
  }
  return std::make_shared<Parameter>(Parameter{
      .name = name, .tensor = found->second, .global_shape = found->second.sizes().vec()});
}

std::unique_ptr<Layer> Decoder::linear(const std::string& name, bool bias) const {
  return std::make_unique<Linear>(parameter(name + ".weight"),
                                  bias ? parameter(name + ".bias") : nullptr);
}

Decoder::Block Decoder::make_block(int64_t index) {
  const std::string layer = fmt::format("model.layers.{}.", index);
  const auto norm = [&](const std::string& name) {
    return add(
        layer + name, SlotKind::kNorm,
        std::make_unique<RmsNorm>(parameter(layer + name + ".weight"), config_.rms_norm_eps));
  };
  const auto projection = [&](const std::string& name, bool bias) {
    return add(layer + name, SlotKind::kLinear, linear(layer + name, bias));
  };
  const auto residual = [&](const std::string& name) {
    return add(layer + name, SlotKind::kResidual, std::make_unique<Residual>());
  };
  Block block{};
  block.input_layernorm = norm("input_layernorm");
  block.q_proj = projection("self_attn.q_proj", config_.attention_bias);
  block.k_proj = projection("self_attn.k_proj", config_.attention_bias);
  block.v_proj = projection("self_attn.v_proj", config_.attention_bias);
  block.attention =
      add(layer + "self_attn.attention", SlotKind::kAttention, std::make_unique<CausalAttention>());
  block.o_proj = projection("self_attn.o_proj", config_.attention_bias);
  block.attention_residual = residual("attention_residual");
  block.post_attention_layernorm = norm("post_attention_layernorm");
  block.gate_proj = projection("mlp.gate_proj", config_.mlp_bias);
  block.up_proj = projection("mlp.up_proj", config_.mlp_bias);
  block.activation =
      add(layer + "mlp.activation", SlotKind::kActivation, std::make_unique<SiluGate>());
  block.down_proj = projection("mlp.down_proj", config_.mlp_bias);
  block.mlp_residual = residual("mlp_residual");
  return block;
}

std::vector<Slot*> Decoder::slots() {
  std::vector<Slot*> all;
  for (const auto& slot : slots_) all.push_back(slot.get());
  return all;
}

Slot& Decoder::slot(const std::string& name) {
  const auto found = by_name_.find(name);
  SHARDPROOF_ASSERT(found != by_name_.end(), "the model has no slot " + name);
  return *found->second;
}

std::vector<ParameterPtr> Decoder::parameters() const {
  std::vector<ParameterPtr> all;
  for (const auto& slot : slots_) {
    for (const ParameterPtr& parameter : slot->layer->parameters()) {
      if (std::find(all.begin(), all.end(), parameter) == all.end()) all.push_back(parameter);
    }
  }
  return all;
}

void Decoder::materialise(const Mesh& mesh, int64_t rank, at::ScalarType dtype, at::Device device) {
  SHARDPROOF_ASSERT(!materialised_, "a decoder is materialised once");
  materialised_ = true;
  const at::ScalarType wide = wider_type(dtype);
  for (const ParameterPtr& parameter : parameters()) {
    const at::Tensor master =
        cut(parameter->tensor, parameter->layout, mesh, rank).to(device, wide);
    if (dtype != wide) parameter->master = master;
    parameter->tensor = master.to(dtype).requires_grad_(parameter->trainable);
  }
  inverse_frequencies_ = inverse_frequencies(config_).to(device, wide);
}

at::Tensor Decoder::forward(const at::Tensor& input_ids, const StepContext& context) {
  SHARDPROOF_ASSERT(materialised_, "materialise() comes before forward()");
  const at::Tensor rotary = rotary_table(context.positions, inverse_frequencies_);
  at::Tensor x = (*embed_tokens_)({input_ids}, context);
  for (const Block& block : blocks_) x = run_block(block, x, context, rotary);
  x = (*norm_)({x}, context);
  return (*lm_head_)({x}, context);
}

// x [b, s, E] -> [b, s, E]; under a plan the residual stream may be a shard of the sequence, so the
// number of tokens that attention sees is read from the projections.
at::Tensor Decoder::run_block(const Block& block, const at::Tensor& x, const StepContext& context,
                              const at::Tensor& rotary) const {
  const auto heads = [&](const at::Tensor& projected) {  // [b, s, H*D] -> [b, s, H, D]
    return projected.view({projected.size(0), projected.size(1),
                           projected.size(2) / config_.head_dim, config_.head_dim});
  };
  const at::Tensor normed = (*block.input_layernorm)({x}, context);
  const at::Tensor q = rotate(heads((*block.q_proj)({normed}, context)), rotary);
  const at::Tensor k = rotate(heads((*block.k_proj)({normed}, context)), rotary);
  const at::Tensor v = heads((*block.v_proj)({normed}, context));
  const at::Tensor mixed = (*block.attention)({q, k, v}, context);
  const at::Tensor attended = (*block.o_proj)({mixed}, context);
  const at::Tensor middle = (*block.attention_residual)({x, attended}, context);

  const at::Tensor mlp_in = (*block.post_attention_layernorm)({middle}, context);
  const at::Tensor gate = (*block.gate_proj)({mlp_in}, context);
  const at::Tensor up = (*block.up_proj)({mlp_in}, context);
  const at::Tensor gated = (*block.activation)({gate, up}, context);
  return (*block.mlp_residual)({middle, (*block.down_proj)({gated}, context)}, context);
}

}  // namespace shardproof
