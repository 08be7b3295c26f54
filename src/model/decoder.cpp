#include "model/decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "base/error.h"
#include "model/experts.h"
#include "model/rope.h"
#include "tensor/shard.h"

namespace shardproof {

// A null slot is one that the layer does not have.
struct Decoder::Block {
  bool sliding;
  Slot *input_layernorm, *q_proj, *k_proj, *v_proj, *q_norm, *k_norm, *attention, *o_proj;
  Slot *attention_norm, *attention_residual;
  Slot *mlp_input_norm, *gate_proj, *up_proj, *activation, *down_proj, *mlp_norm, *mlp_residual;
  // In place of gate_proj to down_proj, or beside them if they are a shared MLP.
  Slot *router, *selection, *route_weights, *experts, *shared_gate, *shared_sum;
  std::vector<Slot*> slots;  // all of them
  Region region, mlp_region;
};

namespace {

// Returns `x` for a null slot.
at::Tensor through(Slot* slot, const at::Tensor& x, const StepContext& context) {
  return slot == nullptr ? x : (*slot)({x}, context);
}

// Multiplies by the family's factor in the dtype of the weights, as Hugging Face does.
at::Tensor scaled_embedding(const at::Tensor& embedded, double scale) {
  if (scale == 1.0) return embedded;
  return embedded * at::scalar_tensor(scale, embedded.options());
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, std::shared_ptr<const WeightMap> weights)
    : config_(config), weights_(std::move(weights)) {
  const ParameterPtr embedding = parameter("model.embed_tokens.weight");
  embed_tokens_ = add("model.embed_tokens", SlotRole::kEmbedding,
                      std::make_unique<Embedding>(embedding, config_.pad_token_id));
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) blocks_.push_back(make_block(i));
  norm_ =
      add("model.norm", SlotRole::kStreamNorm, make_layer("model.", "norm", 0, SlotKind::kNorm));
  const ParameterPtr head = config_.tie_word_embeddings ? embedding : parameter("lm_head.weight");
  lm_head_ = add("lm_head", SlotRole::kLmHead, std::make_unique<Linear>(head, nullptr));
  set_chunks({segments()});
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;

Slot* Decoder::add(std::string name, SlotRole role, std::unique_ptr<Layer> layer) {
  slots_.push_back(
      std::make_unique<Slot>(Slot{.name = name, .role = role, .layer = std::move(layer)}));
  by_name_[name] = slots_.back().get();
  return slots_.back().get();
}

ParameterPtr Decoder::parameter(const std::string& name) const {
  const auto found = weights_->find(name);
  if (found == weights_->end()) {
    throw_bad_input(fmt::format("the weights have no tensor '{}'", name),
                    "add it, or mend the config that asks for it");
  }
  return std::make_shared<Parameter>(Parameter{
      .name = name, .tensor = found->second, .global_shape = found->second.sizes().vec()});
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
      return std::make_unique<RmsNorm>(parameter(name + ".weight"), config_.rms_norm_eps,
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
      return std::make_unique<ExpertSelection>(config_.router);
    case SlotKind::kRouteWeights:
      return std::make_unique<RouteWeights>(config_.router);
    case SlotKind::kExperts:
      return make_experts(name);
    case SlotKind::kSharedSum:
      return std::make_unique<SharedSum>();
    default:
      return std::make_unique<Residual>();
  }
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
  Block block{};
  for (const auto& [part, role] : layer_slots(config_, index)) {
    block.slots.push_back(add(layer + part, role, make_layer(layer, part, index, kind_of(role))));
  }
  const auto part = [&](const std::string& name) {
    const auto found = by_name_.find(layer + name);
    return found == by_name_.end() ? nullptr : found->second;
  };
  const bool output_norms = config_.traits().output_norms;
  block.sliding = config_.window_of_layer(index) > 0;
  block.input_layernorm = part("input_layernorm");
  block.q_proj = part("self_attn.q_proj");
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
  const std::string mlp = config_.has_shared_expert(index) ? "mlp.shared_expert." : "mlp.";
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

Region& Decoder::region(const std::string& name) {
  for (size_t c = 0; c < chunk_regions_.size(); ++c) {
    if (name == fmt::format("chunk.{}", c) || (c == 0 && name == "model")) return chunk_regions_[c];
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const std::string layer = fmt::format("model.layers.{}", i);
    if (name == layer) return blocks_[i].region;
    if (name == layer + ".mlp") return blocks_[i].mlp_region;
  }
  SHARDPROOF_ASSERT(false, "the model has no region " + name);
}

std::vector<Segment> Decoder::segments() const {
  std::vector<Segment> all = {{Segment::Part::kEmbed}};
  for (int64_t i = 0; i < std::ssize(blocks_); ++i) all.push_back({Segment::Part::kLayer, i});
  all.push_back({Segment::Part::kNorm});
  all.push_back({Segment::Part::kHead});
  return all;
}

std::vector<Slot*> Decoder::slots_of(const Segment& segment) {
  switch (segment.part) {
    case Segment::Part::kEmbed:
      return {embed_tokens_};
    case Segment::Part::kLayer:
      return blocks_.at(segment.layer).slots;
    case Segment::Part::kNorm:
      return {norm_};
    default:
      return {lm_head_};
  }
}

std::vector<Slot*> Decoder::slots_of(int64_t chunk) {
  std::vector<Slot*> all;
  for (const Segment& segment : chunks_.at(chunk)) {
    const std::vector<Slot*> more = slots_of(segment);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

void Decoder::set_chunks(std::vector<std::vector<Segment>> chunks) {
  SHARDPROOF_ASSERT(!materialised_, "set_chunks() comes before materialise()");
  SHARDPROOF_ASSERT(!chunks.empty(), "a rank without segments has one empty chunk");
  const std::vector<Segment> all = segments();
  std::vector<bool> taken(all.size());
  for (const std::vector<Segment>& chunk : chunks) {
    auto next = chunk.empty() ? all.end() : std::find(all.begin(), all.end(), chunk.front());
    for (const Segment& segment : chunk) {
      SHARDPROOF_ASSERT(next != all.end() && *next == segment && !taken[next - all.begin()],
                        "a chunk is a run of segments that no other chunk has");
      taken[next++ - all.begin()] = true;
    }
  }
  chunks_ = std::move(chunks);
  chunk_regions_ = std::vector<Region>(chunks_.size());
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

void Decoder::freeze(const std::vector<std::string>& patterns) {
  const std::vector<ParameterPtr> all = parameters();
  for (const std::string& pattern : patterns) {
    bool fits = false;
    for (const ParameterPtr& parameter : all) {
      if (fnmatch(pattern.c_str(), parameter->name.c_str(), 0) != 0) continue;
      parameter->trainable = false;
      fits = true;
    }
    if (fits) continue;
    throw_bad_input(
        fmt::format("the pattern \"{}\" of frozen parameters fits none of {}", pattern, all.size()),
        "use names like " + all[all.size() / 2]->name + ", with * for any text");
  }
  const auto trained = [](const ParameterPtr& parameter) { return parameter->trainable; };
  if (std::any_of(all.begin(), all.end(), trained)) return;
  throw_bad_input(fmt::format("all {} parameters are frozen", all.size()),
                  "leave at least one to train");
}

void Decoder::materialise(const Mesh& mesh, int64_t rank, at::ScalarType dtype, at::Device device) {
  SHARDPROOF_ASSERT(!materialised_, "a decoder is materialised once");
  materialised_ = true;
  const at::ScalarType wide = wider_type(dtype);
  for (const ParameterPtr& parameter : parameters()) {
    if (parameter->master.defined()) continue;
    const at::Tensor master =
        cut(parameter->tensor, parameter->layout, mesh, rank).to(device, wide);
    if (dtype != wide) parameter->master = master;
    parameter->tensor = master.to(dtype).requires_grad_(parameter->trainable);
  }
  inverse_frequencies_ = inverse_frequencies(config_).to(device, wide);
  if (config_.has_sliding_layers()) {
    sliding_inverse_frequencies_ = inverse_frequencies(config_, /*sliding=*/true).to(device, wide);
  }
}

at::Tensor Decoder::forward(const at::Tensor& input_ids, const StepContext& context) {
  SHARDPROOF_ASSERT(chunk_count() == 1, "a model in several chunks has no forward as a whole");
  return forward(0, input_ids, context);
}

at::Tensor Decoder::forward(int64_t chunk, const at::Tensor& x, const StepContext& context) {
  SHARDPROOF_ASSERT(materialised_, "materialise() comes before forward()");
  StepContext own = context;
  own.chunk = chunk;
  return chunk_regions_.at(chunk).run(x, own, [this, chunk](const auto& input, const auto& step) {
    return run_chunk(chunk, input, step);
  });
}

at::Tensor Decoder::run_chunk(int64_t chunk, at::Tensor x, const StepContext& context) const {
  const double factor = config_.rope_scaling.attention_factor;
  const auto table = [&](const at::Tensor& frequencies) {
    return frequencies.defined() ? rotary_table(context.positions, frequencies, factor)
                                 : at::Tensor();
  };
  at::Tensor rotary, sliding_rotary;
  for (const Segment& segment : chunks_[chunk]) {
    switch (segment.part) {
      case Segment::Part::kEmbed:
        x = scaled_embedding((*embed_tokens_)({x}, context), config_.embedding_scale());
        break;
      case Segment::Part::kLayer: {
        if (!rotary.defined()) {
          rotary = table(inverse_frequencies_);
          sliding_rotary = table(sliding_inverse_frequencies_);
        }
        const Block& block = blocks_[segment.layer];
        const at::Tensor own = block.sliding ? sliding_rotary : rotary;
        x = block.region.run(x, context, [this, &block, own](const auto& stream, const auto& at) {
          return run_block(block, stream, at, own);
        });
        break;
      }
      case Segment::Part::kNorm:
        x = (*norm_)({x}, context);
        break;
      case Segment::Part::kHead:
        x = (*lm_head_)({x}, context);
        break;
    }
  }
  return x;
}

// x [b, s, E] -> [b, s, E]. Under a plan the residual stream may be a shard of the sequence, so the
// projections give the number of tokens that attention sees.
at::Tensor Decoder::run_attention(const Block& block, const at::Tensor& x,
                                  const StepContext& context, const at::Tensor& rotary) const {
  const auto heads = [&](const at::Tensor& projected) {  // [b, s, H*D] -> [b, s, H, D]
    return projected.view({projected.size(0), projected.size(1),
                           projected.size(2) / config_.head_dim, config_.head_dim});
  };
  const at::Tensor q = heads((*block.q_proj)({x}, context));
  const at::Tensor k = heads((*block.k_proj)({x}, context));
  const at::Tensor v = heads((*block.v_proj)({x}, context));
  const at::Tensor normed_q = through(block.q_norm, q, context);
  const at::Tensor normed_k = through(block.k_norm, k, context);
  const at::Tensor mixed =
      (*block.attention)({rotate(normed_q, rotary), rotate(normed_k, rotary), v}, context);
  return (*block.o_proj)({mixed}, context);
}

at::Tensor Decoder::run_block(const Block& block, const at::Tensor& x, const StepContext& context,
                              const at::Tensor& rotary) const {
  const at::Tensor normed = (*block.input_layernorm)({x}, context);
  const at::Tensor attended =
      through(block.attention_norm, run_attention(block, normed, context, rotary), context);
  const at::Tensor middle = (*block.attention_residual)({x, attended}, context);

  const at::Tensor mlp_in = (*block.mlp_input_norm)({middle}, context);
  const at::Tensor added = block.mlp_region.run(
      mlp_in, context,
      [this, &block](const auto& input, const auto& step) { return run_mlp(block, input, step); });
  return (*block.mlp_residual)({middle, through(block.mlp_norm, added, context)}, context);
}

at::Tensor Decoder::run_mlp(const Block& block, const at::Tensor& x,
                            const StepContext& context) const {
  at::Tensor routed;
  if (block.router != nullptr) {
    const at::Tensor logits = (*block.router)({x}, context);
    const at::Tensor ids = (*block.selection)({logits}, context);
    const at::Tensor weights = (*block.route_weights)({logits, ids}, context);
    routed = (*block.experts)({x, ids, weights}, context);
    if (block.shared_sum == nullptr) return routed;
  }
  const at::Tensor gate = (*block.gate_proj)({x}, context);
  const at::Tensor up = (*block.up_proj)({x}, context);
  const at::Tensor gated = (*block.activation)({gate, up}, context);
  const at::Tensor out = (*block.down_proj)({gated}, context);
  if (block.shared_sum == nullptr) return out;
  return (*block.shared_sum)({routed, out, (*block.shared_gate)({x}, context)}, context);
}

}  // namespace shardproof
