#include "golden/written_out.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

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
  explicit WrittenOutAttention(AttentionOptions options) : options_(options) {}

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
    const at::Tensor weights =
        scores
            .masked_fill(unseen_keys(seq_len, options_.window, context.sequence_ids),
                         -std::numeric_limits<double>::infinity())
            .softmax(-1)
            .view({batch, kv_heads, group * seq_len, seq_len});
    return at::matmul(weights, v)
        .view({batch, heads, seq_len, head_dim})
        .transpose(1, 2)
        .reshape({batch, seq_len, heads * head_dim})
        .to(dtype);
  }

 private:
  AttentionOptions options_;
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
  explicit WrittenOutRouter(ParameterPtr weight) : weight_(std::move(weight)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext&) override {
    const at::ScalarType wide = wider_type(inputs[0].scalar_type());
    return at::matmul(inputs[0].to(wide), weight_->tensor.to(wide).t());
  }
  std::vector<ParameterPtr> parameters() const override { return {weight_}; }

 private:
  ParameterPtr weight_;
};

// Every expert computes every token. Ranks may choose other experts where two scores are as near as
// roundings, so that such a case is refused.
class WrittenOutExperts : public Layer {
 public:
  WrittenOutExperts(std::string name, const Experts& experts)
      : name_(std::move(name)),
        gate_up_(experts.gate_up),
        down_(experts.down),
        rule_(experts.rule),
        activation_(experts.activation) {}

  at::Tensor forward(at::TensorList inputs, const StepContext&) override {
    const at::Tensor x = inputs[0].flatten(0, 1), logits = inputs[1].flatten(0, 1);
    const DenseRoutes routes = choose_experts(logits, /*bias=*/{}, rule_);
    for (int64_t t = 0; t < x.size(0); ++t) {
      const double margin = routes.margin.data_ptr<double>()[t];
      if (margin >= kLeastMargin) continue;
      throw_refused(fmt::format("{} chooses for token {} between two scores that differ by {:.1e}, "
                                "and ranks may choose the other one",
                                name_, t, margin),
                    "choose another seed");
    }
    return dense_experts(x, mixture_weights(logits, routes.chosen, rule_), gate_up_->tensor,
                         down_->tensor, activation_)
        .view_as(inputs[0]);
  }
  std::vector<ParameterPtr> parameters() const override { return {gate_up_, down_}; }

 private:
  static constexpr double kLeastMargin = 1e-8;
  std::string name_;
  ParameterPtr gate_up_, down_;
  RouterRule rule_;
  Activation activation_;
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
      slot->layer =
          std::make_unique<WrittenOutAttention>(plain_layer<CausalAttention>(*slot).options());
    } else if (slot->kind() == SlotKind::kNorm) {
      slot->layer = std::make_unique<WrittenOutNorm>(plain_layer<RmsNorm>(*slot));
    } else if (slot->kind() == SlotKind::kActivation) {
      slot->layer = std::make_unique<WrittenOutGate>(model.config().activation);
    } else if (slot->kind() == SlotKind::kRouter) {
      slot->layer = std::make_unique<WrittenOutRouter>(plain_layer<Router>(*slot).weight);
    } else if (slot->kind() == SlotKind::kExperts) {
      slot->layer = std::make_unique<WrittenOutExperts>(slot->name, plain_layer<Experts>(*slot));
    }
  }
}

}  // namespace shardproof::golden
