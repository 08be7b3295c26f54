#include "golden/route_choices.h"

#include "model/wrapped_layer.h"

namespace shardproof::golden {

class RouteChoices::Chosen : public WrappedLayer {
 public:
  Chosen(std::unique_ptr<Layer> inner, std::string name, RouteChoices& choices)
      : WrappedLayer(std::move(inner)), name_(std::move(name)), choices_(choices) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const std::pair<std::string, int64_t> key(name_, context.step);
    if (!choices_.fixed_) return choices_.ids_[key] = inner_->forward(inputs, context);
    const at::Tensor& ids = choices_.ids_.at(key);
    // A run that looks for overflows in parts of the batch has other tokens.
    const bool same = ids.size(0) == inputs[0].size(0);
    return same ? ids : inner_->forward(inputs, context);
  }

 private:
  std::string name_;
  RouteChoices& choices_;
};

void RouteChoices::wrap(Decoder& model) {
  for (Slot* slot : model.slots()) {
    if (slot->kind() != SlotKind::kSelection) continue;
    slot->layer = std::make_unique<Chosen>(std::move(slot->layer), slot->name, *this);
  }
}

}  // namespace shardproof::golden
