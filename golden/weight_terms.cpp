#include "golden/weight_terms.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "model/wrapped_layer.h"

namespace shardproof::golden {
namespace {

// The largest magnitude of each position: [.., width] -> float64 [..].
at::Tensor largest_of_positions(const at::Tensor& value) {
  return value.detach().abs().amax(-1).to(at::kDouble);
}

class WatchedLinear : public WrappedLayer {
 public:
  WatchedLinear(std::unique_ptr<Layer> inner, std::shared_ptr<WeightTerms> terms)
      : WrappedLayer(std::move(inner)), terms_(std::move(terms)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const at::Tensor out = inner_->forward(inputs, context);
    if (!out.requires_grad()) return out;
    out.register_hook([terms = terms_, x = largest_of_positions(inputs[0])](const at::Tensor& dy) {
      const at::Tensor of_positions = largest_of_positions(dy) * x;
      const auto most = of_positions.sum().item<double>();
      terms->most = std::max(terms->most, most);
      if (most > kLargestHalf && of_positions.count_nonzero().item<int64_t>() > 1) {
        terms->is_sum = true;
      }
    });
    return out;
  }

 private:
  std::shared_ptr<WeightTerms> terms_;
};

}  // namespace

std::shared_ptr<WeightTerms> watch_weight_terms(Decoder& model) {
  auto terms = std::make_shared<WeightTerms>();
  for (Slot* slot : model.slots()) {
    if (slot->kind() != SlotKind::kLinear && slot->kind() != SlotKind::kLmHead) continue;
    slot->layer = std::make_unique<WatchedLinear>(std::move(slot->layer), terms);
  }
  return terms;
}

}  // namespace shardproof::golden
