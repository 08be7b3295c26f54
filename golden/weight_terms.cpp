// Legend: B samples, S positions, P parts of a sample, I and O features.
#include "golden/weight_terms.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "model/wrapped_layer.h"

namespace shardproof::golden {
namespace {

bool fits(const at::Tensor& sums) { return sums.abs().max().item<double>() <= kLargestHalf; }

// The largest magnitude of each position: [B, S, I] -> [B, S].
at::Tensor largest_of_positions(const at::Tensor& value) { return value.abs().amax(-1); }

// dy [B, S, O], x [B, S, I] -> [B, P, O, I]: each sample's sums over stretches of its positions.
at::Tensor sums_of_parts(const at::Tensor& dy, const at::Tensor& x, int64_t parts) {
  const int64_t length = (dy.size(1) + parts - 1) / parts;
  const auto cut = [&](const at::Tensor& value) {
    return at::constant_pad_nd(value, {0, 0, 0, length * parts - value.size(1)})
        .view({value.size(0), parts, length, value.size(2)});
  };
  return cut(dy).transpose(2, 3).matmul(cut(x));
}

// Contiguous and zigzag shares of 2 to 16 ranks, for all samples together and for each one.
uint32_t ways_that_fit(const at::Tensor& dy, const at::Tensor& x) {
  uint32_t ways = 0, bit = 1;
  for (const int64_t ranks : {2, 4, 8, 16}) {
    const at::Tensor sums = sums_of_parts(dy, x, 2 * ranks);
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

class WatchedLinear : public WrappedLayer {
 public:
  WatchedLinear(std::unique_ptr<Layer> inner, std::shared_ptr<WeightTerms> terms)
      : WrappedLayer(std::move(inner)), terms_(std::move(terms)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const at::Tensor out = inner_->forward(inputs, context);
    if (!out.requires_grad()) return out;
    out.register_hook([terms = terms_, input = inputs[0].detach()](const at::Tensor& gradient) {
      const at::Tensor dy = gradient.to(at::kDouble), x = input.to(at::kDouble);
      const auto most = (largest_of_positions(dy) * largest_of_positions(x)).sum().item<double>();
      terms->most = std::max(terms->most, most);
      if (most <= kLargestHalf || fits(sums_of_parts(dy, x, 1).sum(0))) return;
      terms->overflows = true;
      terms->ways &= ways_that_fit(dy, x);
    });
    return out;
  }

 private:
  std::shared_ptr<WeightTerms> terms_;
};

bool is_trained_linear(const Slot& slot) {
  if (slot.kind() != SlotKind::kLinear && slot.kind() != SlotKind::kLmHead) return false;
  const std::vector<ParameterPtr> parameters = slot.layer->parameters();
  return std::any_of(parameters.begin(), parameters.end(), [](const ParameterPtr& parameter) {
    return parameter->trainable && parameter->global_shape.size() == 2;
  });
}

}  // namespace

std::shared_ptr<WeightTerms> watch_weight_terms(Decoder& model) {
  auto terms = std::make_shared<WeightTerms>();
  for (Slot* slot : model.slots()) {
    if (!is_trained_linear(*slot)) continue;
    slot->layer = std::make_unique<WatchedLinear>(std::move(slot->layer), terms);
  }
  return terms;
}

}  // namespace shardproof::golden
