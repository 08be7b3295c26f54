#include "golden/route_choices.h"

#include "model/wrapped_layer.h"

namespace shardproof::golden {

void RouteChoices::wrap(Decoder& model) {
  for (Slot* slot : model.slots(SlotKind::kSelection)) {
    wrap_layer(*slot, [this, name = slot->name](Layer& inner, at::TensorList inputs,
                                                const StepContext& context) {
      const std::pair<std::string, int64_t> key(name, context.step);
      if (!fixed_) return ids_[key] = inner.forward(inputs, context);
      const at::Tensor& ids = ids_.at(key);
      // A run that looks for overflows in parts of the batch has other tokens.
      const bool same = ids.size(0) == inputs[0].size(0);
      return same ? ids : inner.forward(inputs, context);
    });
  }
}

}  // namespace shardproof::golden
