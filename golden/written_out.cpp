#include "golden/written_out.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "golden/dense_experts.h"
#include "golden/dense_routes.h"
#include "model/experts.h"

namespace shardproof::golden {
namespace {

// [S, S]: true where a query (row) must not see a key (column).
at::Tensor unseen_keys(int64_t seq_len, int64_t window, const at::Tensor& sequence_ids) {
  const at::Tensor all = at::ones({seq_len, seq_len}, at::kBool);
  at::Tensor hidden = all.triu(1);
  if (window > 0) hidden = hidden.logical_or_(all.tril(-window));
  if (!sequence_ids.defined()) return hidden;
  const at::Tensor ids = sequence_ids.view({seq_len});
  return hidden.logical_or(ids.unsqueeze(0).ne(ids.unsqueeze(1)));
}

// Computes all scores of a sample at once.
class WrittenOutAttention : public Layer {
 public:
  explicit WrittenOutAttention(const CausalAttention& plain)
      : options_(plain.options()), sinks_(plain.sinks) {}

  std::vector<ParameterPtr> parameters() const override {
    if (!sinks_) return {};
    return {sinks_};
  }

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const at::ScalarType dtype = inputs[0].scalar_type(), wide = wider_type(dtype);
    const int64_t batch = inputs[0].size(0), seq_len = inputs[0].size(1), heads = inputs[0].size(2),
                  head_dim = inputs[0].size(3), kv_heads = inputs[1].size(2),
                  group = heads / kv_heads;
    const at::Tensor q =
        inputs[0].to(wide).transpose(1, 2).reshape({batch, kv_heads, group * seq_len, head_dim});
    const at::Tensor k = inputs[1].to(wide).transpose(1, 2);  // [B, H_kv, S, D]
    const at::Tensor v = inputs[2].to(wide).transpose(1, 2);
    const double scale =
        options_.scale > 0 ? options_.scale : 1.0 / std::sqrt(static_cast<double>(head_dim));
    const at::Tensor scores =
        (at::matmul(q, k.transpose(2, 3)) * scale).view({batch, kv_heads, group, seq_len, seq_len});
    at::Tensor seen =
        scores.masked_fill(unseen_keys(seq_len, options_.window, context.sequence_ids),
                           -std::numeric_limits<double>::infinity());
    if (sinks_) {
      const at::Tensor sinks = sinks_->tensor.to(wide).view({1, kv_heads, group, 1, 1});
      seen = at::cat({sinks.expand({batch, kv_heads, group, seq_len, 1}), seen}, -1);
    }
    const at::Tensor weights = seen.softmax(-1)
                                   .narrow(-1, sinks_ ? 1 : 0, seq_len)
                                   .reshape({batch, kv_heads, group * seq_len, seq_len});
    return at::matmul(weights, v)
        .view({batch, heads, seq_len, head_dim})
        .transpose(1, 2)
        .reshape({batch, seq_len, heads * head_dim})
        .to(dtype);
  }

 private:
  AttentionOptions options_;
  ParameterPtr sinks_;
};

class WrittenOutNorm : public Layer {
 public:
  explicit WrittenOutNorm(const RmsNorm& norm)
      : weight_(norm.weight), eps_(norm.eps), unit_offset_(norm.unit_offset) {}

  at::Tensor forward(at::TensorList inputs, const StepContext&) override {
    const at::ScalarType dtype = inputs[0].scalar_type(), wide = wider_type(dtype);
    const at::Tensor x = inputs[0].to(wide);
    const at::Tensor normed = x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps_);
    const at::Tensor factor = weight_->tensor.to(wide);
    return (normed * (unit_offset_ ? factor + 1.0 : factor)).to(dtype);
  }
  std::vector<ParameterPtr> parameters() const override { return {weight_}; }

 private:
  ParameterPtr weight_;
  double eps_;
  bool unit_offset_;
};

class WrittenOutGate : public Layer {
 public:
  explicit WrittenOutGate(Activation activation) : activation_(activation) {}

  at::Tensor forward(at::TensorList inputs, const StepContext&) override {
    const bool gelu = activation_ == Activation::kGeluTanh;
    return (gelu ? at::gelu(inputs[0], "tanh") : at::silu(inputs[0])) * inputs[1];
  }

 private:
  Activation activation_;
};

class WrittenOutRouter : public Layer {
 public:
  explicit WrittenOutRouter(const Router& plain) : plain_(plain) {}

  at::Tensor forward(at::TensorList inputs, const StepContext&) override {
    const at::ScalarType wide = wider_type(inputs[0].scalar_type());
    const at::Tensor logits = at::matmul(inputs[0].to(wide), plain_.weight->tensor.to(wide).t());
    return plain_.bias ? logits + plain_.bias->tensor.to(wide) : logits;
  }
  std::vector<ParameterPtr> parameters() const override { return plain_.parameters(); }

 private:
  Router plain_;
};

class WrittenOutSelection : public Layer {
 public:
  WrittenOutSelection(std::string name, const ExpertSelection& plain)
      : name_(std::move(name)), rule_(plain.rule), bias_(plain.bias) {}

  std::vector<ParameterPtr> parameters() const override {
    if (!bias_) return {};
    return {bias_};
  }

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const DenseRoutes routes =
        choose_experts(inputs[0].flatten(0, 1), bias_ ? bias_->tensor : at::Tensor(), rule_);
    see_margins(name_, routes.margin, inputs[0].scalar_type(), context);
    return routes.chosen.nonzero().select(1, 1).view(
        {inputs[0].size(0), inputs[0].size(1), rule_.num_chosen});
  }

 private:
  std::string name_;
  RouterRule rule_;
  ParameterPtr bias_;
};

class WrittenOutRouteWeights : public Layer {
 public:
  explicit WrittenOutRouteWeights(const RouterRule& rule) : rule_(rule) {}

  at::Tensor forward(at::TensorList inputs, const StepContext&) override {
    const at::Tensor logits = inputs[0].flatten(0, 1), ids = inputs[1].flatten(0, 1);
    const at::Tensor chosen = at::zeros_like(logits, at::kBool).scatter(1, ids, true);
    return mixture_weights(logits, chosen, rule_).gather(1, ids).view_as(inputs[1]);
  }

 private:
  RouterRule rule_;
};

// Every expert computes every token.
class WrittenOutExperts : public Layer {
 public:
  WrittenOutExperts(std::string name, const Experts& experts)
      : name_(std::move(name)), plain_(experts) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const at::Tensor x = inputs[0].flatten(0, 1), weights = inputs[2].flatten(0, 1);
    const ExpertTensors experts = plain_.tensors();
    const at::Tensor dense = at::zeros({x.size(0), experts.down.size(0)}, weights.options())
                                 .scatter(1, inputs[1].flatten(0, 1), weights);
    // A repeated head calls it again in a step, by another name.
    const bool is_seen = shown_ != context.step && x.scalar_type() == at::kDouble &&
                         context.probe.listens(Phase::kRecompute) &&
                         x.numel() * experts.down.size(0) <= kMostBeside;
    std::vector<at::Tensor> each;
    std::vector<at::Tensor>* const kept = is_seen ? &each : nullptr;
    const at::Tensor sum =
        experts.form.columns_in_turn
            ? dense_clamped_experts(x, dense, experts, kept)
            : dense_experts(x, dense, experts.gate_up, experts.down, experts.form.activation, kept);
    if (is_seen) show(each, experts, inputs[0], context);
    return sum.view_as(inputs[0]);
  }
  std::vector<ParameterPtr> parameters() const override { return plain_.parameters(); }

 private:
  static constexpr int64_t kMostBeside = 1 << 18;  // numbers

  // Beside the golden, for what the judge says of a wrong sum: the result of every expert for every
  // token [B, S, N, E], and the biases [N, E] within it.
  void show(const std::vector<at::Tensor>& each, const ExpertTensors& experts, const at::Tensor& x,
            const StepContext& context) {
    shown_ = context.step;
    std::vector<int64_t> shape = x.sizes().vec();
    shape.insert(shape.end() - 1, std::ssize(each));
    context.probe.observe({.kind = ObservationKind::kOutput,
                           .name = name_ + ".output.each",
                           .phase = Phase::kRecompute,
                           .step = context.step,
                           .tensor = at::stack(each, 1).view(shape),
                           .token_map = context.token_map});
    if (!experts.down_bias.defined()) return;
    context.probe.observe({.kind = ObservationKind::kOutput,
                           .name = name_ + ".output.biases",
                           .phase = Phase::kRecompute,
                           .step = context.step,
                           .tensor = experts.down_bias.detach().clone()});
  }

  std::string name_;
  int64_t shown_ = -1;  // the last step whose results were shown
  Experts plain_;
};

class WrittenOutSharedSum : public Layer {
 public:
  at::Tensor forward(at::TensorList inputs, const StepContext&) override {
    if (inputs.size() < 3) return inputs[1] + inputs[0];
    return inputs[0] + inputs[1] / (1 + (-inputs[2]).exp());
  }
};

template <class PlainLayer>
const PlainLayer& plain_layer(const Slot& slot) {
  const auto* layer = dynamic_cast<const PlainLayer*>(slot.layer.get());
  SHARDPROOF_ASSERT(layer != nullptr, slot.name + " holds another layer than the plain model's");
  return *layer;
}

}  // namespace

void write_out(Decoder& model) {
  for (Slot* slot : model.slots()) {
    if (slot->kind() == SlotKind::kAttention) {
      slot->layer = std::make_unique<WrittenOutAttention>(plain_layer<CausalAttention>(*slot));
    } else if (slot->kind() == SlotKind::kNorm) {
      slot->layer = std::make_unique<WrittenOutNorm>(plain_layer<RmsNorm>(*slot));
    } else if (slot->kind() == SlotKind::kActivation) {
      slot->layer = std::make_unique<WrittenOutGate>(model.config().activation);
    } else if (slot->kind() == SlotKind::kRouter) {
      slot->layer = std::make_unique<WrittenOutRouter>(plain_layer<Router>(*slot));
    } else if (slot->kind() == SlotKind::kSelection) {
      slot->layer =
          std::make_unique<WrittenOutSelection>(slot->name, plain_layer<ExpertSelection>(*slot));
    } else if (slot->kind() == SlotKind::kRouteWeights) {
      slot->layer = std::make_unique<WrittenOutRouteWeights>(model.config().router);
    } else if (slot->kind() == SlotKind::kExperts) {
      slot->layer = std::make_unique<WrittenOutExperts>(slot->name, plain_layer<Experts>(*slot));
    } else if (slot->kind() == SlotKind::kSharedSum) {
      slot->layer = std::make_unique<WrittenOutSharedSum>();
    }
  }
}

}  // namespace shardproof::golden
