#include "train/activation_checkpoint.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "random/checkpoint.h"

namespace shardproof {
namespace {

class CheckpointedRegion : public RegionWrap {
 public:
  explicit CheckpointedRegion(std::shared_ptr<KeptActivation> kept_input)
      : kept_input_(std::move(kept_input)) {}

  at::Tensor run(const at::Tensor& x, const StepContext& context, const RegionBody& body) override {
    if (!at::GradMode::is_enabled() || !x.requires_grad()) return body(x, context);
    const auto own = std::make_shared<StepContext>(context);
    const auto run_body = [body, own](const std::vector<at::Tensor>& inputs) {
      const at::Tensor y = body(inputs[0], *own);
      own->forward_phase = Phase::kRecompute;  // of the next run
      return std::vector<at::Tensor>{y};
    };
    return checkpoint(run_body, {x}, nullptr, {.first_input = kept_input_.get()})[0];
  }

 private:
  std::shared_ptr<KeptActivation> kept_input_;  // null: the input is kept as it is
};

}  // namespace

void apply_activation_checkpointing(Decoder& model, CheckpointedRegions regions) {
  if (regions == CheckpointedRegions::kNone) return;
  const char* part = regions == CheckpointedRegions::kMlp ? ".mlp" : "";
  for (int64_t i = 0; i < model.config().layers_with_heads(); ++i) {
    Region& region = model.region(fmt::format("model.layers.{}{}", i, part));
    region.wrap(std::make_unique<CheckpointedRegion>(region.kept_input()));
  }
}

}  // namespace shardproof
