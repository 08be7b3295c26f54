#include "train/discarded_outputs.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "model/wrapped_layer.h"
#include "random/checkpoint.h"
#include "random/checkpoint_without_output.h"

namespace shardproof {
namespace {

// Of the forward that runs now: what the first layer computes and the last one may discard.
using Pending = std::shared_ptr<std::optional<CheckpointWithoutOutput>>;

class DiscardedLayer : public WrappedLayer {
 public:
  DiscardedLayer(std::unique_ptr<Layer> inner, Pending pending)
      : WrappedLayer(std::move(inner)), pending_(std::move(pending)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    if (!takes_gradient(inputs)) return inner_->forward(inputs, context);
    const auto own = std::make_shared<StepContext>(context);
    const auto body = [layer = inner_.get(), own](const std::vector<at::Tensor>& x) {
      return std::vector<at::Tensor>{layer->forward(x, *own)};
    };
    return pending_->emplace().run(body, inputs.vec(), nullptr)[0];
  }

 private:
  // Without one the output takes none, as behind frozen layers.
  bool takes_gradient(at::TensorList inputs) const {
    const auto parameters = inner_->parameters();
    const auto trains = [](const ParameterPtr& one) { return one->trainable; };
    const auto flows = [](const at::Tensor& one) { return one.requires_grad(); };
    return at::GradMode::is_enabled() &&
           (std::ranges::any_of(inputs, flows) || std::ranges::any_of(parameters, trains));
  }

  Pending pending_;
};

class LastReader : public WrappedLayer {
 public:
  LastReader(std::unique_ptr<Layer> inner, Pending pending)
      : WrappedLayer(std::move(inner)), pending_(std::move(pending)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    at::Tensor out = inner_->forward(inputs, context);
    // The first run of a checkpointed region has no graph, and the region keeps what it reads.
    if (pending_->has_value() && out.requires_grad()) (*pending_)->discard_outputs_until(out);
    pending_->reset();
    return out;
  }

  void drop_backward() override {
    pending_->reset();  // of a forward that threw in between
    WrappedLayer::drop_backward();
  }

 private:
  Pending pending_;
};

// The role behind which the output of a slot may go; none: it stays.
std::optional<SlotRole> last_reader(SlotRole role, SlotRole next, DiscardedOutputs outputs) {
  const bool both = outputs == DiscardedOutputs::kBoth;
  if (role == SlotRole::kStreamNorm && (both || outputs == DiscardedOutputs::kNorms)) {
    if (next == SlotRole::kQuery) return SlotRole::kAttention;
    if (next == SlotRole::kGate) return SlotRole::kActivation;
  }
  if (role == SlotRole::kActivation && (both || outputs == DiscardedOutputs::kActivations)) {
    return SlotRole::kDown;
  }
  return std::nullopt;
}

}  // namespace

void discard_outputs(Decoder& model, DiscardedOutputs outputs) {
  const std::vector<Slot*> slots = model.slots();
  std::vector<std::pair<Slot*, Pending>> readers;
  for (size_t i = 0; i + 1 < slots.size(); ++i) {
    const auto until = last_reader(slots[i]->role, slots[i + 1]->role, outputs);
    if (!until) continue;
    size_t last = i + 1;
    while (last < slots.size() && slots[last]->role != *until) ++last;
    SHARDPROOF_ASSERT(last < slots.size(), "nothing reads the output of " + slots[i]->name);
    readers.emplace_back(slots[last], std::make_shared<std::optional<CheckpointWithoutOutput>>());
    slots[i]->layer =
        std::make_unique<DiscardedLayer>(std::move(slots[i]->layer), readers.back().second);
  }
  // Around the layers above: their bodies run without a graph, and hooks need one.
  for (const auto& [slot, pending] : readers) {
    slot->layer = std::make_unique<LastReader>(std::move(slot->layer), pending);
  }
}

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
