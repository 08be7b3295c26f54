// Legend: B samples, S positions, P parts of a sample, I and O features.
#include "golden/weight_terms.h"

#include <ATen/ATen.h>

#include <algorithm>
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

// A linear, whose bias is the gradient of one more column of ones, or the table of embeddings.
class WatchedLayer : public WrappedLayer {
 public:
  WatchedLayer(std::unique_ptr<Layer> inner, std::shared_ptr<WeightTerms> terms,
               std::shared_ptr<GradientsOfWeight> users, const ModelConfig* of_embedding)
      : WrappedLayer(std::move(inner)),
        terms_(std::move(terms)),
        users_(std::move(users)),
        of_embedding_(of_embedding) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const at::Tensor out = inner_->forward(inputs, context);
    if (!out.requires_grad()) return out;
    out.register_hook([this, input = inputs[0].detach()](const at::Tensor& gradient) {
      if (!of_embedding_) users_->clear();  // a tied head is the first in a backward
      users_->push_back(factors(gradient.to(at::kDouble), input));
      note(*terms_, *users_);
      if (of_embedding_) users_->clear();
    });
    return out;
  }

 private:
  Factors factors(const at::Tensor& dy, const at::Tensor& input) const {
    if (!of_embedding_) {
      const bool has_bias = inner_->parameters().size() > 1;
      return {.rows = dy,
              .columns = at::constant_pad_nd(input.to(at::kDouble), {0, has_bias ? 1 : 0}, 1)};
    }
    const at::Tensor counted = input.ne(of_embedding_->pad_token_id).unsqueeze(-1);
    const at::Tensor chosen = at::one_hot(input, of_embedding_->vocab_size).to(at::kDouble);
    return {.rows = chosen, .columns = dy * counted};
  }

  std::shared_ptr<WeightTerms> terms_;
  std::shared_ptr<GradientsOfWeight> users_;
  const ModelConfig* of_embedding_;  // null: a linear
};

bool is_trained(const Slot& slot) {
  const SlotKind kind = slot.kind();
  if (kind != SlotKind::kLinear && kind != SlotKind::kLmHead && kind != SlotKind::kEmbedding)
    return false;
  const std::vector<ParameterPtr> parameters = slot.layer->parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const ParameterPtr& parameter) { return parameter->trainable; });
}

}  // namespace

std::shared_ptr<WeightTerms> watch_weight_terms(Decoder& model) {
  auto terms = std::make_shared<WeightTerms>();
  const auto tied = std::make_shared<GradientsOfWeight>();
  for (Slot* slot : model.slots()) {
    if (!is_trained(*slot)) continue;
    const bool embeds = slot->kind() == SlotKind::kEmbedding;
    const bool shares =
        model.config().tie_word_embeddings && (embeds || slot->kind() == SlotKind::kLmHead);
    slot->layer = std::make_unique<WatchedLayer>(
        std::move(slot->layer), terms, shares ? tied : std::make_shared<GradientsOfWeight>(),
        embeds ? &model.config() : nullptr);
  }
  return terms;
}

}  // namespace shardproof::golden
