// Legend: B samples, S positions, P parts of a sample, I and O features.
#include "golden/weight_terms.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <utility>

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
  if (fits(whole)) return;
  terms.overflows = true;
  for (const Factors& factors : users) terms.ways &= ways_that_fit(factors);
}

// From the gradient of a layer's output, in float64, and its input.
using FactorsOf = std::function<Factors(const at::Tensor& dy, const at::Tensor& input)>;

// A bias is the gradient of one more column of ones.
FactorsOf factors_of_linear(bool has_bias) {
  return [has_bias](const at::Tensor& dy, const at::Tensor& input) {
    return Factors{.rows = dy,
                   .columns = at::constant_pad_nd(input.to(at::kDouble), {0, has_bias ? 1 : 0}, 1)};
  };
}

FactorsOf factors_of_table(const ModelConfig& config) {
  return [&config](const at::Tensor& dy, const at::Tensor& ids) {
    const at::Tensor counted = ids.ne(config.pad_token_id).unsqueeze(-1);
    return Factors{.rows = at::one_hot(ids, config.vocab_size).to(at::kDouble),
                   .columns = dy * counted};
  };
}

// Each head of a norm of heads counts as a sample, because ranks share the heads too.
FactorsOf factors_of_norm(double eps) {
  return [eps](const at::Tensor& dy, const at::Tensor& input) {
    const at::Tensor x = input.to(at::kDouble);
    at::Tensor rows = dy * x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps);
    if (rows.dim() == 4) rows = rows.transpose(1, 2).flatten(0, 1);
    return Factors{.rows = rows, .columns = at::ones_like(rows.narrow(-1, 0, 1))};
  };
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
    if (!out.requires_grad()) return out;
    out.register_hook([this, input = inputs[0].detach()](const at::Tensor& gradient) {
      if (!embeds_) users_->clear();  // a tied head is the first in a backward
      users_->push_back(factors_(gradient.to(at::kDouble), input));
      note(*terms_, *users_);
      if (embeds_) users_->clear();
    });
    return out;
  }

 private:
  std::shared_ptr<WeightTerms> terms_;
  std::shared_ptr<GradientsOfWeight> users_;
  FactorsOf factors_;
  bool embeds_;
};

// Null for layers whose weights are not watched.
FactorsOf factors_of(const Slot& slot, const ModelConfig& config) {
  switch (slot.kind()) {
    case SlotKind::kLinear:
    case SlotKind::kLmHead:
    case SlotKind::kRouter:
      return factors_of_linear(slot.layer->parameters().size() > 1);
    case SlotKind::kEmbedding:
      return factors_of_table(config);
    case SlotKind::kNorm:
      return factors_of_norm(config.eps_of_norm(slot.name));
    default:
      return nullptr;
  }
}

bool is_trained(const Slot& slot) {
  const std::vector<ParameterPtr> parameters = slot.layer->parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const ParameterPtr& parameter) { return parameter->trainable; });
}

}  // namespace

std::shared_ptr<WeightTerms> watch_weight_terms(Decoder& model) {
  auto terms = std::make_shared<WeightTerms>();
  const auto tied = std::make_shared<GradientsOfWeight>();
  for (Slot* slot : model.slots()) {
    FactorsOf factors = factors_of(*slot, model.config());
    if (!factors || !is_trained(*slot)) continue;
    const bool embeds = slot->kind() == SlotKind::kEmbedding;
    const bool shares =
        model.config().tie_word_embeddings && (embeds || slot->kind() == SlotKind::kLmHead);
    slot->layer = std::make_unique<WatchedLayer>(
        std::move(slot->layer), terms, shares ? tied : std::make_shared<GradientsOfWeight>(),
        std::move(factors), embeds);
  }
  return terms;
}

}  // namespace shardproof::golden
