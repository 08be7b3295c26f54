#include "sim/world/rank/golden_routes.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "model/precision.h"
#include "model/wrapped_layer.h"
#include "tensor/aten_view.h"
#include "train/router_tokens.h"

namespace shardproof::sim::world {
namespace {

class GoldenSelection : public WrappedLayer {
 public:
  GoldenSelection(std::unique_ptr<Layer> inner, std::string name, const GoldenRecord& golden,
                  const MeshComm& comm)
      : WrappedLayer(std::move(inner)), name_(std::move(name)), golden_(golden), comm_(comm) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    // The choice is not the rank's own, so nothing else shows what it would have been made from.
    const at::ScalarType type = inputs[0].scalar_type();
    if (type != wider_type(type)) {
      throw Error({.kind = ErrorKind::kFailed,
                   .what = fmt::format("{} chooses from logits in {}", name_, at::toString(type)),
                   .fix = "compute routers in the wider type"});
    }
    const GoldenTensor* chosen = golden_.find(Phase::kForward, context.step, name_ + ".output");
    SHARDPROOF_ASSERT(chosen != nullptr, "the golden has no " + name_);
    const at::Tensor all = tensor_of(chosen->value).flatten(0, 1);
    const at::Tensor tokens = tokens_of_router(context.token_map, inputs[0].size(1), comm_);
    const at::Tensor ids = all.index({tokens.clamp_min(0)});
    return ids.masked_fill(tokens.lt(0).unsqueeze(-1), -1).to(inputs[0].device());
  }

 private:
  std::string name_;
  const GoldenRecord& golden_;
  const MeshComm& comm_;
};

}  // namespace

void take_golden_routes(Decoder& model, const GoldenRecord& golden, const MeshComm& comm) {
  for (Slot* slot : model.slots()) {
    if (slot->kind() != SlotKind::kSelection) continue;
    slot->layer =
        std::make_unique<GoldenSelection>(std::move(slot->layer), slot->name, golden, comm);
  }
}

}  // namespace shardproof::sim::world
