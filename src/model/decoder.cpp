#include "model/decoder.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "base/error.h"
#include "model/decoder_block.h"
#include "model/rope.h"
#include "tensor/shard.h"

namespace shardproof {

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

// Observes the stream now, and its gradient in the backward.
void watch_boundary(const at::Tensor& stream, const Segment& segment, const StepContext& context) {
  const Boundary boundary{.part = part_name(segment)};
  observe_boundary(boundary, Phase::kForward, stream, context);
  if (!at::GradMode::is_enabled() || !stream.requires_grad()) return;
  if (!context.probe.listens(Phase::kBackward)) return;
  stream.register_hook([boundary, context](const at::Tensor& grad) {
    observe_boundary(boundary, Phase::kBackward, grad, context);
  });
}

}  // namespace

std::string part_name(const Segment& segment) {
  switch (segment.part) {
    case Segment::Part::kEmbed:
      return "model.embed_tokens";
    case Segment::Part::kLayer:
      return fmt::format("model.layers.{}", segment.layer);
    case Segment::Part::kNorm:
      return "model.norm";
    default:
      return "lm_head";
  }
}

std::string boundary_name(const std::string& part, Phase phase) {
  return part + (phase == Phase::kBackward ? ".grad_boundary" : ".boundary");
}

void observe_boundary(const Boundary& boundary, Phase phase, const at::Tensor& tensor,
                      const StepContext& context, std::string site) {
  if (boundary.part.empty() || !context.probe.listens(phase)) return;
  context.probe.observe({.kind = ObservationKind::kBoundary,
                         .name = boundary_name(boundary.part, phase),
                         .phase = phase,
                         .step = context.step,
                         .microbatch = context.microbatch,
                         .tensor = tensor,
                         .layout = boundary.layout,
                         .token_map = context.token_map,
                         .scale = phase == Phase::kBackward ? context.grad_scale : 1.0,
                         .site = std::move(site)});
}

Decoder::Decoder(const ModelConfig& config, std::shared_ptr<const WeightMap> weights)
    : config_(config), weights_(std::move(weights)) {
  embedding_ = parameter("model.embed_tokens.weight");
  head_ = config_.tie_word_embeddings ? embedding_ : parameter("lm_head.weight");
  embed_tokens_ =
      add("model.embed_tokens", SlotRole::kEmbedding, make_shared(SlotKind::kEmbedding));
  for (int64_t i = 0; i < config_.num_hidden_layers; ++i) blocks_.push_back(make_block(i));
  norm_ =
      add("model.norm", SlotRole::kStreamNorm, make_layer("model.", "norm", 0, SlotKind::kNorm));
  for (int64_t i = config_.num_hidden_layers; i < config_.layers_with_heads(); ++i) {
    blocks_.push_back(make_block(i));
  }
  lm_head_ = add("lm_head", SlotRole::kLmHead, make_shared(SlotKind::kLmHead));
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

std::vector<Slot*> Decoder::slots() {
  std::vector<Slot*> all;
  for (const auto& slot : slots_) all.push_back(slot.get());
  return all;
}

std::vector<Slot*> Decoder::slots(SlotKind kind) {
  std::vector<Slot*> found = slots();
  std::erase_if(found, [kind](const Slot* slot) { return slot->kind() != kind; });
  return found;
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
  const int64_t layers = config_.num_hidden_layers;
  for (int64_t i = 0; i < layers; ++i) all.push_back({Segment::Part::kLayer, i});
  all.push_back({Segment::Part::kNorm});
  for (int64_t i = layers; i < std::ssize(blocks_); ++i) {
    all.push_back({Segment::Part::kExtraHead, i});
  }
  all.push_back({Segment::Part::kHead});
  return all;
}

std::vector<Slot*> Decoder::slots_of(const Segment& segment) {
  switch (segment.part) {
    case Segment::Part::kEmbed:
      return {embed_tokens_};
    case Segment::Part::kLayer:
    case Segment::Part::kExtraHead:
      return blocks_.at(segment.layer).slots;
    case Segment::Part::kNorm:
      return {norm_};
    default:
      break;
  }
  std::vector<Slot*> heads = {lm_head_};
  for (const Block& block : blocks_) {
    if (block.head != nullptr) heads.push_back(block.head);
  }
  return heads;
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
    if (observes_boundaries_ && segment != chunks_[chunk].front()) {
      watch_boundary(x, segment, context);
    }
    switch (segment.part) {
      case Segment::Part::kEmbed:
        x = scaled_embedding((*embed_tokens_)({x}, context), config_.embedding_scale());
        break;
      case Segment::Part::kLayer:
      case Segment::Part::kExtraHead: {
        if (!rotary.defined()) {
          rotary = table(inverse_frequencies_);
          sliding_rotary = table(sliding_inverse_frequencies_);
        }
        const Block& block = blocks_[segment.layer];
        const at::Tensor own = block.sliding ? sliding_rotary : rotary;
        if (segment.part == Segment::Part::kExtraHead) {
          if (!context.further_ids.defined()) break;
          x = with_extra_head(block, segment.layer - config_.num_hidden_layers, x, context, own);
          break;
        }
        x = block.region.run(x, context, [this, &block, own](const auto& stream, const auto& at) {
          return run_block(block, stream, at, own);
        });
        break;
      }
      case Segment::Part::kNorm:
        x = (*norm_)({x}, context);
        break;
      case Segment::Part::kHead:
        x = run_heads(x, context);
        break;
    }
  }
  return x;
}

// x [b, s, E] -> [b, s, E]. Under a plan the residual stream may be a shard of the sequence, so the
// projections give the number of tokens that attention sees.
at::Tensor Decoder::run_attention(const Block& block, const at::Tensor& x,
                                  const StepContext& context, const at::Tensor& rotary) const {
  if (block.kv_down != nullptr) return run_latent_attention(block, x, context, rotary);
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

// As run_attention. The core of attention has one width: shorter keys, or values, get zeros, which
// change nothing.
at::Tensor Decoder::run_latent_attention(const Block& block, const at::Tensor& x,
                                         const StepContext& context,
                                         const at::Tensor& rotary) const {
  const LatentSizes& sizes = config_.latent;
  const int64_t width = std::max(config_.head_dim, sizes.value);
  const auto heads = [](const at::Tensor& projected, int64_t dim) {
    return projected.view({projected.size(0), projected.size(1), projected.size(2) / dim, dim});
  };
  const auto widened = [width](const at::Tensor& part) {
    return at::constant_pad_nd(part, {0, width - part.size(-1)});
  };
  const at::Tensor q_in = through(block.q_down_norm, through(block.q_down, x, context), context);
  const at::Tensor q = heads((*block.q_proj)({q_in}, context), config_.head_dim);
  const at::Tensor down = (*block.kv_down)({x}, context);
  const at::Tensor latent =
      (*block.kv_down_norm)({down.narrow(-1, 0, sizes.kv_rank).contiguous()}, context);
  const at::Tensor up = heads((*block.kv_up)({latent}, context), sizes.nope + sizes.value);
  const at::Tensor shared_key =
      (*block.rotary_key)({down.narrow(-1, sizes.kv_rank, sizes.rope).contiguous()}, context);
  const at::Tensor turned_key =
      rotate(shared_key.unsqueeze(2), rotary, sizes.interleaved).expand({-1, -1, up.size(2), -1});
  const at::Tensor turned_q =
      rotate(q.narrow(-1, sizes.nope, sizes.rope), rotary, sizes.interleaved);
  const at::Tensor whole_q = at::cat({q.narrow(-1, 0, sizes.nope), turned_q}, -1);
  const at::Tensor whole_k = at::cat({up.narrow(-1, 0, sizes.nope), turned_key}, -1);
  const at::Tensor v = up.narrow(-1, sizes.nope, sizes.value);
  const at::Tensor mixed =
      (*block.attention)({widened(whole_q), widened(whole_k), widened(v)}, context);
  return (*block.o_proj)({heads(mixed, width).narrow(-1, 0, sizes.value).flatten(2)}, context);
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
  if (block.shared_gate == nullptr) return (*block.shared_sum)({routed, out}, context);
  return (*block.shared_sum)({routed, out, (*block.shared_gate)({x}, context)}, context);
}

}  // namespace shardproof
