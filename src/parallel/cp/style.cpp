#include "parallel/cp/style.h"

#include <ATen/ATen.h>

#include "base/error.h"
#include "parallel/cp/ring_attention.h"

namespace shardproof {
namespace {

// q [B, T_cp, H, D], k, v [B, T_cp, H_kv, D] -> [B, T_cp, H*D]
class RingAttention : public Layer {
 public:
  RingAttention(Communicator& cp, const ContextParallelOptions& options,
                const CausalAttention& plain, std::string label)
      : cp_(cp),
        options_(options),
        attention_(plain.options()),
        sinks_(plain.sinks),
        label_(std::move(label)) {}

  std::vector<ParameterPtr> parameters() const override {
    if (!sinks_) return {};
    return {sinks_};
  }

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    SHARDPROOF_ASSERT(context.sequence_layout != nullptr, "the step says who holds which tokens");
    RingAttentionOptions ring{.rotation = options_.rotation, .label = label_};
    ring.rule.window = attention_.window;
    if (attention_.scale > 0) ring.scale = attention_.scale;
    return ring_attention(inputs[0], inputs[1], inputs[2], *context.sequence_layout, cp_, ring,
                          sinks_of(inputs, sinks_))
        .flatten(2);
  }

 private:
  Communicator& cp_;
  ContextParallelOptions options_;
  AttentionOptions attention_;
  ParameterPtr sinks_;
  std::string label_;
};

}  // namespace

void ContextParallel::install(Decoder& model, MeshComm& comm) const {
  if (comm.mesh().size("cp") == 1) return;
  Communicator& cp = comm.along("cp");
  for (Slot* slot : model.slots(SlotKind::kAttention)) {
    const auto* plain = dynamic_cast<const CausalAttention*>(slot->layer.get());
    SHARDPROOF_ASSERT(plain != nullptr, slot->name + " holds another layer than the ring replaces");
    slot->layer = std::make_unique<RingAttention>(cp, options_, *plain, slot->name);
  }
}

void ContextParallel::cut_tokens(TokenCuts& cuts, const Mesh&) const {
  cuts.ring_axis = "cp";
  cuts.ring_layout = options_.layout;
}

}  // namespace shardproof
