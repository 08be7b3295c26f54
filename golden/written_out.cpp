#include "golden/written_out.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "base/error.h"

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
    }
  }
}

}  // namespace shardproof::golden
