#include "sim/world/rank/golden_routes.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "model/precision.h"
#include "model/wrapped_layer.h"
#include "tensor/aten_view.h"
#include "train/router_tokens.h"

namespace shardproof::sim::world {

void take_golden_routes(Decoder& model, const GoldenRecord& golden, const MeshComm& comm) {
  for (Slot* slot : model.slots(SlotKind::kSelection)) {
    wrap_layer(*slot, [&golden, &comm, name = slot->name](Layer&, at::TensorList inputs,
                                                          const StepContext& context) {
      // The choice is not the rank's own, so nothing else shows what it would have been made from.
      const at::ScalarType type = inputs[0].scalar_type();
      if (type != wider_type(type)) {
        throw_failed(fmt::format("{} chooses from logits in {}", name, at::toString(type)),
                     "compute routers in the wider type");
      }
      const GoldenTensor* chosen = golden.find(Phase::kForward, context.step, name + ".output");
      SHARDPROOF_ASSERT(chosen != nullptr, "the golden has no " + name);
      const at::Tensor all = tensor_of(chosen->value).flatten(0, 1);
      const at::Tensor tokens = tokens_of_router(context.token_map, inputs[0].size(1), comm);
      const at::Tensor ids = all.index({tokens.clamp_min(0)});
      return ids.masked_fill(tokens.lt(0).unsqueeze(-1), -1).to(inputs[0].device());
    });
  }
}

}  // namespace shardproof::sim::world
