#include "parallel/tp/style.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "collective/mappings.h"
#include "model/wrapped_layer.h"
#include "parallel/tp/column_parallel.h"
#include "parallel/tp/fused_norms.h"
#include "parallel/tp/placement.h"
#include "parallel/tp/row_parallel.h"
#include "parallel/tp/spread_activation.h"
#include "parallel/tp/stream_init.h"
#include "parallel/tp/vocab_parallel_embedding.h"

namespace shardproof {
namespace {

template <class PlainLayer>
PlainLayer& plain(Slot& slot) {
  auto* layer = dynamic_cast<PlainLayer*>(slot.layer.get());
  SHARDPROOF_ASSERT(layer != nullptr, slot.name + " holds another layer than the plan replaces");
  return *layer;
}

// A linear that leaves its bias to its caller (skip_bias_add), with the caller's sum.
//
//   forward    y = linear(x) + b         the bias once, after the linear's collectives
//   backward   grad_b, of this rank's features or tokens
//
// Source: Megatron-LM layers.py, skip_bias_add, and fused_bias_dropout.py, which adds the bias.
class BiasAfter : public WrappedLayer {
 public:
  // `linear` must have the bias among its parameters, but not add it; its output has the bias's
  // features.
  BiasAfter(std::unique_ptr<Layer> linear, ParameterPtr bias)
      : WrappedLayer(std::move(linear)), bias_(std::move(bias)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    return inner_->forward(inputs, context) + bias_->tensor;
  }

 private:
  ParameterPtr bias_;
};

void declare(const ParameterPtr& parameter, const ParameterPlacement& placement) {
  if (!parameter) return;
  parameter->layout = placement.layout;
  parameter->rule.sum_over = placement.sum_grad_over;
}

void declare_parameters(Slot& slot, const SlotPlacement& placement) {
  if (auto* linear = dynamic_cast<Linear*>(slot.layer.get())) {
    declare(linear->weight, placement.weight);
    declare(linear->bias, placement.bias);
  } else {
    for (const ParameterPtr& weight : slot.layer->parameters()) declare(weight, placement.weight);
  }
}

// A layer that every tp rank computes in full, beside a residual stream cut along the sequence.
//
//   opens a region    x [B, S_tp, E], all_gather to [B, S, E], the layer
//                     backward: the gradient of the whole x, equal on all ranks, is sliced
//   closes a region   the layer, y [B, S, E], sliced to [B, S_tp, E]
//                     backward: all_gather
//
// The layer's parameters get their whole gradient on every rank.
class WholeLayer : public WrappedLayer {
 public:
  enum class Place { kOpensRegion, kClosesRegion };
  // `tp` must outlive the layer and its backward.
  WholeLayer(std::unique_ptr<Layer> layer, Place place, Communicator& tp, std::string label)
      : WrappedLayer(std::move(layer)), place_(place), tp_(tp), label_(std::move(label)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    if (place_ == Place::kOpensRegion) {
      return inner_->forward({all_gather_with_slice_backward(inputs[0], tp_, 1, label_)}, context);
    }
    return slice_with_all_gather_backward(inner_->forward(inputs, context), tp_, 1, label_);
  }

 private:
  Place place_;
  Communicator& tp_;
  std::string label_;
};

// The selection of experts for this rank's part of the sequence: of the context's tokens, which are
// those of all tp ranks, it sees these alone.
class OwnTokens : public WrappedLayer {
 public:
  OwnTokens(std::unique_ptr<Layer> layer, const Communicator& tp)
      : WrappedLayer(std::move(layer)), tp_(tp) {}
  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const int64_t own = inputs[0].size(1);
    StepContext part = context;
    if (part.token_map.defined()) {
      SHARDPROOF_ASSERT(part.token_map.size(1) == own * tp_.size(), "each rank has an equal part");
      part.token_map = part.token_map.narrow(1, tp_.rank() * own, own);
    }
    return inner_->forward(inputs, part);
  }

 private:
  const Communicator& tp_;
};

// The rotary key, which all heads of all ranks share. The backward adds the gradients of the ranks'
// heads.
class GatheredKey : public Layer {
 public:
  GatheredKey(Communicator& tp, std::string label) : tp_(tp), label_(std::move(label)) {}
  at::Tensor forward(at::TensorList inputs, const StepContext&) override {
    return all_gather_with_reduce_scatter_backward(inputs[0], tp_, 1, label_);
  }

 private:
  Communicator& tp_;
  std::string label_;
};

// Makes the layer of `style` for a slot; null: the plain layer stays.
class LayerMaker {
 public:
  LayerMaker(Communicator& tp, const TensorParallelOptions& options)
      : tp_(tp),
        sequence_parallel_(options.sequence_parallel),
        async_grad_(options.async_grad),
        bias_after_(options.bias == BiasPlace::kAfter),
        deferred_(options.deferred_wgrad),
        buffer_(options.gather_buffer ? std::make_shared<GatherBuffer>() : nullptr) {}

  std::unique_ptr<Layer> make(Slot& slot, TpStyle style) const {
    switch (style) {
      case TpStyle::kColumnParallel:
      case TpStyle::kVocabParallelLmHead:
        return column_parallel(slot, false);
      case TpStyle::kColumnParallelGathered:
        if (sequence_parallel_ && slot.role == SlotRole::kExtraJoin) {
          return std::make_unique<WholeLayer>(column_parallel(slot, true),
                                              WholeLayer::Place::kClosesRegion, tp_, slot.name);
        }
        return column_parallel(slot, true);
      case TpStyle::kRowParallel:
        return row_parallel(slot, true);
      case TpStyle::kRowParallelScattered:
        return row_parallel(slot, false);
      case TpStyle::kVocabParallelEmbedding:
        return vocab_parallel_embedding(slot);
      case TpStyle::kSequenceExperts:
        if (slot.kind() != SlotKind::kSelection) return nullptr;
        return std::make_unique<OwnTokens>(std::move(slot.layer), tp_);
      case TpStyle::kSequenceLatent:
        if (slot.kind() != SlotKind::kRotaryKey) return nullptr;
        return std::make_unique<GatheredKey>(tp_, slot.name);
      case TpStyle::kReplicate:
        return sequence_parallel_ ? whole(slot) : nullptr;
      // Layers that compute on any part of their input.
      case TpStyle::kHeadParallelAttention:
      case TpStyle::kHeadParallelNorm:
      case TpStyle::kHiddenParallelActivation:
      case TpStyle::kSequenceNorm:
      case TpStyle::kSequenceResidual:
        return nullptr;
    }
    return nullptr;
  }

 private:
  static std::unique_ptr<Layer> with_bias(std::unique_ptr<Layer> layer, const Linear& linear,
                                          bool after) {
    if (!after) return layer;
    return std::make_unique<BiasAfter>(std::move(layer), linear.bias);
  }

  std::unique_ptr<Layer> column_parallel(Slot& slot, bool gather_output) const {
    const Linear& linear = plain<Linear>(slot);
    // A gathered output has the features of all ranks, the bias those of this one.
    const bool after = bias_after_ && linear.bias && !gather_output;
    auto layer = std::make_unique<ColumnParallelLinear>(
        linear.weight, linear.bias, tp_,
        ColumnParallelLinear::Options{
            .label = slot.name,
            .sequence_parallel = sequence_parallel_,
            .gather_output = gather_output,
            .output_parts = tp_parts(linear.weight->global_shape[0], tp_.size()),
            .skip_bias_add = after,
            .async_grad = async_grad_,
            .gather_buffer = buffer_,
            .deferred =
                deferred_ == 0 ? nullptr : std::make_shared<DeferredWeightGradients>(deferred_)});
    return with_bias(std::move(layer), linear, after);
  }

  std::unique_ptr<Layer> row_parallel(Slot& slot, bool input_is_parallel) const {
    const Linear& linear = plain<Linear>(slot);
    const bool after = bias_after_ && linear.bias;
    auto layer = std::make_unique<RowParallelLinear>(
        linear.weight, linear.bias, tp_,
        RowParallelLinear::Options{
            .label = slot.name,
            .sequence_parallel = sequence_parallel_,
            .input_is_parallel = input_is_parallel,
            .input_parts = tp_parts(linear.weight->global_shape[1], tp_.size()),
            .skip_bias_add = after,
            .gather_buffer = buffer_});
    return with_bias(std::move(layer), linear, after);
  }

  std::unique_ptr<Layer> vocab_parallel_embedding(Slot& slot) const {
    const Embedding& embedding = plain<Embedding>(slot);
    return std::make_unique<VocabParallelEmbedding>(
        embedding.weight, tp_,
        VocabParallelEmbedding::Options{.label = slot.name,
                                        .pad_token_id = embedding.pad_token_id,
                                        .sequence_parallel = sequence_parallel_});
  }

  // A whole layer beside a stream that is cut along the sequence gathers its input or slices its
  // output. The norms of heads, the attention core and the activation between such layers get whole
  // tensors, so they stay plain.
  std::unique_ptr<Layer> whole(Slot& slot) const {
    const bool inside = slot.kind() == SlotKind::kAttention ||
                        slot.kind() == SlotKind::kActivation || slot.kind() == SlotKind::kNorm;
    if (inside) return nullptr;
    const bool closes = opens_stream(slot.role);
    return std::make_unique<WholeLayer>(
        std::move(slot.layer),
        closes ? WholeLayer::Place::kClosesRegion : WholeLayer::Place::kOpensRegion, tp_,
        slot.name);
  }

  Communicator& tp_;
  bool sequence_parallel_, async_grad_, bias_after_;
  int64_t deferred_;                      // microbatches; 0: none
  std::shared_ptr<GatherBuffer> buffer_;  // shared by the layers; null: gather_buffer is off
};

}  // namespace

void TensorParallel::place(Decoder& model, const Mesh& mesh) const {
  const int64_t tp_size = mesh.size("tp");
  const std::vector<SlotStyle> plan = resolve_plan(model.config(), options_);
  SHARDPROOF_ASSERT(plan.size() == model.slots().size(), "the plan knows every slot");
  if (options_.spread_checkpoints && options_.sequence_parallel) {
    throw_refused(
        "parallel.tp.spread_checkpoints keeps inputs that all tp ranks have whole, "
        "but sequence_parallel cuts them along the sequence",
        "leave out one of the two; each saves the same memory");
  }
  for (const SlotStyle& entry : plan) {
    const SlotPlacement placement =
        place_slot(model.config(), tp_size, options_.sequence_parallel, entry);
    if (tp_size == 1) continue;
    Slot& slot = model.slot(entry.slot);
    declare_parameters(slot, placement);
    slot.input_layouts = placement.inputs;
    slot.input_partial_axes = placement.input_partial_axes;
    slot.output_layout = placement.output;
  }
}

void TensorParallel::install(Decoder& model, MeshComm& comm) const {
  if (options_.own_stream_seed) {
    draw_own_parts(model, comm.mesh(), comm.rank(), *options_.own_stream_seed);
  }
  if (options_.fused_norms) fuse_norms(model);
  if (comm.mesh().size("tp") == 1) return;
  Communicator& tp = comm.along("tp");
  const LayerMaker maker(tp, options_);
  for (const SlotStyle& entry : resolve_plan(model.config(), options_)) {
    Slot& slot = model.slot(entry.slot);
    if (std::unique_ptr<Layer> layer = maker.make(slot, entry.style)) slot.layer = std::move(layer);
  }
  if (!options_.spread_checkpoints) return;
  for (int64_t i = 0; i < model.config().layers_with_heads(); ++i) {
    for (const char* part : {"", ".mlp"}) {
      const std::string name = fmt::format("model.layers.{}{}", i, part);
      model.region(name).keep_input(std::make_shared<SpreadActivation>(tp, name + ".checkpoint"));
    }
  }
}

void TensorParallel::cut_tokens(TokenCuts& cuts, const Mesh& mesh) const {
  if (options_.sequence_parallel) cuts.row_multiple *= mesh.size("tp");
}

}  // namespace shardproof
