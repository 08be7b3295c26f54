// Legend: B samples, S positions, P parts of a sample, I and O features.
#include "golden/weight_terms.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "model/experts.h"
#include "model/wrapped_layer.h"

namespace shardproof::golden {
namespace {

bool fits(const at::Tensor& sums) { return sums.abs().max().item<double>() <= kLargestHalf; }

// A gradient, or one of those that add up in it: the sum over positions of outer products of
// rows [B, S, O] and columns [B, S, I], in float64.
struct Factors {
  at::Tensor rows, columns;

  // No element of a sum over some of the positions is larger in magnitude.
  double most() const {
    return (rows.abs().amax(-1) * columns.abs().amax(-1)).sum().item<double>();
  }
};

// [B, P, O, I]: each sample's sums over stretches of its positions.
at::Tensor sums_of_parts(const Factors& factors, int64_t parts) {
  const int64_t length = (factors.rows.size(1) + parts - 1) / parts;
  const auto cut = [&](const at::Tensor& value) {
    return at::constant_pad_nd(value, {0, 0, 0, length * parts - value.size(1)})
        .view({value.size(0), parts, length, value.size(2)});
  };
  return cut(factors.rows).transpose(2, 3).matmul(cut(factors.columns));
}

// Contiguous and zigzag shares of 2 to 16 ranks, for all samples together and for each one.
uint32_t ways_that_fit(const Factors& factors) {
  uint32_t ways = 0, bit = 1;
  for (const int64_t ranks : {2, 4, 8, 16}) {
    const at::Tensor sums = sums_of_parts(factors, 2 * ranks);
    const at::Tensor contiguous = sums.unflatten(1, {ranks, 2}).sum(2);
    const at::Tensor zigzag =
        sums.narrow(1, 0, ranks) + sums.narrow(1, ranks, ranks).flip(at::IntArrayRef{1});
    for (const at::Tensor& shares : {contiguous, zigzag, contiguous.sum(0), zigzag.sum(0)}) {
      if (fits(shares)) ways |= bit;
      bit <<= 1;
    }
  }
  return ways;
}

// Of one backward: the gradients that add up in the one of a weight, from the last user on.
using GradientsOfWeight = std::vector<Factors>;

// Notes the gradient of a weight once one more of its users has added to it.
void note(WeightTerms& terms, const GradientsOfWeight& users) {
  double most = 0;
  for (const Factors& factors : users) most += factors.most();
  terms.most = std::max(terms.most, most);
  if (most <= kLargestHalf) return;
  at::Tensor whole = sums_of_parts(users[0], 1).sum(0);
  for (size_t i = 1; i < users.size(); ++i) whole += sums_of_parts(users[i], 1).sum(0);
  uint32_t ways = kAllWays;
  for (const Factors& factors : users) ways &= ways_that_fit(factors);
  if (fits(whole)) {
    terms.shares_overflow = terms.shares_overflow || ways != kAllWays;
    return;
  }
  terms.overflows = true;
  terms.ways &= ways;
}

// From the gradient of a layer's output, in float64, and its inputs: the factors of the gradient of
// each of its parameters, or of parts of them.
using FactorsOf = std::function<std::vector<Factors>(const at::Tensor& dy,
                                                     const std::vector<at::Tensor>& inputs)>;

// A bias is the gradient of one more column of ones.
Factors with_bias(const at::Tensor& dy, const at::Tensor& input, bool has_bias) {
  return {.rows = dy, .columns = at::constant_pad_nd(input, {0, has_bias ? 1 : 0}, 1)};
}

FactorsOf factors_of_linear(bool has_bias) {
  return [has_bias](const at::Tensor& dy, const std::vector<at::Tensor>& inputs) {
    return std::vector{with_bias(dy, inputs[0].to(at::kDouble), has_bias)};
  };
}

FactorsOf factors_of_table(const ModelConfig& config) {
  return [&config](const at::Tensor& dy, const std::vector<at::Tensor>& inputs) {
    const at::Tensor counted = inputs[0].ne(config.pad_token_id).unsqueeze(-1);
    return std::vector{Factors{.rows = at::one_hot(inputs[0], config.vocab_size).to(at::kDouble),
                               .columns = dy * counted}};
  };
}

// Each head of a norm of heads counts as a sample, because ranks share the heads too.
FactorsOf factors_of_norm(double eps) {
  return [eps](const at::Tensor& dy, const std::vector<at::Tensor>& inputs) {
    const at::Tensor x = inputs[0].to(at::kDouble);
    at::Tensor rows = dy * x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps);
    if (rows.dim() == 4) rows = rows.transpose(1, 2).flatten(0, 1);
    return std::vector{Factors{.rows = rows, .columns = at::ones_like(rows.narrow(-1, 0, 1))}};
  };
}

// Of each expert: gate and up as one linear, and down, whose rows have the weights of the routes.
FactorsOf factors_of_experts(const std::vector<ParameterPtr>& parameters, const ExpertForm& form) {
  return [parameters, form](const at::Tensor& dy, const std::vector<at::Tensor>& inputs) {
    const bool has_bias = parameters.size() > 2, in_turn = form.columns_in_turn;
    const auto wide = [&](size_t i) { return parameters[i]->tensor.detach().to(at::kDouble); };
    const at::Tensor x = inputs[0].to(at::kDouble), gate_up = wide(0), down = wide(1);
    NoProbe nobody;
    std::vector<Factors> all;
    for (int64_t i = 0; i < down.size(0); ++i) {
      at::Tensor both = x.matmul(in_turn ? gate_up[i] : gate_up[i].t());
      if (has_bias) both = both + wide(2)[i];
      both = both.detach().requires_grad_(true);
      const at::AutoGradMode with_grad(true);
      const std::vector<at::Tensor> parts =
          in_turn ? both.unflatten(-1, {-1, 2}).unbind(-1) : both.chunk(2, -1);
      const at::Tensor active =
          GatedActivation(form.activation, form.clamp).forward(parts, {.probe = nobody});
      const at::Tensor weights =
          (inputs[2].to(at::kDouble) * inputs[1].eq(i)).sum(-1, /*keepdim=*/true);
      const at::Tensor out = dy * weights.detach();
      const at::Tensor into = out.matmul(in_turn ? down[i].t() : down[i]);
      const at::Tensor rows = torch::autograd::grad({active}, {both}, {into})[0];
      all.push_back(with_bias(rows, x, has_bias));
      all.push_back(with_bias(out, active.detach(), has_bias));
    }
    return all;
  };
}

// Keeps the parameters of a layer in float64 as long as it exists.
class WideParameters {
 public:
  explicit WideParameters(const Layer& layer) : parameters_(layer.parameters()) {
    for (const ParameterPtr& parameter : parameters_) {
      narrow_.push_back(parameter->tensor);
      parameter->tensor = parameter->tensor.detach().to(at::kDouble, /*non_blocking=*/false,
                                                        /*copy=*/true);
      parameter->tensor.requires_grad_(parameter->trainable);
      if (parameter->trainable) leaves.push_back(parameter->tensor);
    }
  }
  ~WideParameters() {
    for (size_t i = 0; i < narrow_.size(); ++i) parameters_[i]->tensor = narrow_[i];
  }
  WideParameters(const WideParameters&) = delete;
  WideParameters& operator=(const WideParameters&) = delete;
  std::vector<at::Tensor> leaves;

 private:
  std::vector<ParameterPtr> parameters_;
  std::vector<at::Tensor> narrow_;
};

// Of any other layer, which runs in float64: one position after the other.
FactorsOf factors_by_position(Layer& layer) {
  return [&layer](const at::Tensor& dy, const std::vector<at::Tensor>& inputs) {
    const at::AutoGradMode with_grad(true);
    const WideParameters wide(layer);
    std::vector<at::Tensor> x;
    for (const at::Tensor& input : inputs) {
      x.push_back(input.is_floating_point() ? input.to(at::kDouble) : input);
    }
    NoProbe nobody;
    const at::Tensor out = layer.forward(x, {.probe = nobody});
    const int64_t batch = dy.size(0), seq_len = dy.size(1);
    std::vector<Factors> all;
    for (const at::Tensor& leaf : wide.leaves) {
      all.push_back({.rows = at::zeros({batch, seq_len, leaf.numel()}, dy.options()),
                     .columns = at::ones({batch, seq_len, 1}, dy.options())});
    }
    for (int64_t at = 0; at < batch * seq_len; ++at) {
      const int64_t sample = at / seq_len, position = at % seq_len;
      at::Tensor one = at::zeros_like(dy);
      one[sample][position].copy_(dy[sample][position]);
      const std::vector<at::Tensor> grads = torch::autograd::grad(
          {out}, wide.leaves, {one}, /*retain_graph=*/true, /*create_graph=*/false,
          /*allow_unused=*/true);
      for (size_t i = 0; i < grads.size(); ++i) {
        if (grads[i].defined()) all[i].rows[sample][position].copy_(grads[i].flatten());
      }
    }
    return all;
  };
}

bool is_trained(const Layer& layer) {
  const std::vector<ParameterPtr> parameters = layer.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const ParameterPtr& parameter) { return parameter->trainable; });
}

class WatchedLayer : public WrappedLayer {
 public:
  WatchedLayer(std::unique_ptr<Layer> inner, std::shared_ptr<WeightTerms> terms,
               std::shared_ptr<GradientsOfWeight> users, FactorsOf factors, bool embeds)
      : WrappedLayer(std::move(inner)),
        terms_(std::move(terms)),
        users_(std::move(users)),
        factors_(std::move(factors)),
        embeds_(embeds) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const at::Tensor out = inner_->forward(inputs, context);
    if (!out.requires_grad() || !is_trained(*inner_)) return out;
    std::vector<at::Tensor> detached;
    for (const at::Tensor& input : inputs) detached.push_back(input.detach());
    out.register_hook([this, detached](const at::Tensor& gradient) {
      if (!terms_->watches) return;
      const std::vector<Factors> factors = factors_(gradient.to(at::kDouble), detached);
      if (!users_) {
        for (const Factors& one : factors) note(*terms_, {one});
        return;
      }
      if (!embeds_) users_->clear();  // a tied head is the first in a backward
      users_->push_back(factors.front());
      note(*terms_, *users_);
    });
    return out;
  }

 private:
  std::shared_ptr<WeightTerms> terms_;
  std::shared_ptr<GradientsOfWeight> users_;  // of a tied weight; null: it has no other user
  FactorsOf factors_;
  bool embeds_;
};

FactorsOf factors_of(const Slot& slot, const ModelConfig& config) {
  const std::vector<ParameterPtr> parameters = slot.layer->parameters();
  switch (slot.kind()) {
    case SlotKind::kLinear:
    case SlotKind::kLmHead:
    case SlotKind::kRouter:
      return factors_of_linear(parameters.size() > 1);
    case SlotKind::kEmbedding:
      return factors_of_table(config);
    case SlotKind::kNorm:
      return factors_of_norm(config.eps_of_norm(slot.name));
    case SlotKind::kExperts:
      return factors_of_experts(parameters, config.expert_form());
    default:
      return factors_by_position(*slot.layer);
  }
}

}  // namespace

std::shared_ptr<WeightTerms> watch_weight_terms(Decoder& model) {
  auto terms = std::make_shared<WeightTerms>();
  const auto tied = std::make_shared<GradientsOfWeight>();
  for (Slot* slot : model.slots()) {
    if (slot->layer->parameters().empty()) continue;
    FactorsOf factors = factors_of(*slot, model.config());
    const bool embeds = slot->kind() == SlotKind::kEmbedding;
    const bool shares =
        model.config().tie_word_embeddings && (embeds || slot->kind() == SlotKind::kLmHead);
    slot->layer = std::make_unique<WatchedLayer>(
        std::move(slot->layer), terms, shares ? tied : nullptr, std::move(factors), embeds);
  }
  return terms;
}

}  // namespace shardproof::golden
