#include "golden/kept_routes.h"

#include <ATen/ATen.h>

#include <map>

#include "model/wrapped_layer.h"

namespace shardproof::golden {

struct KeptRoutes::State {
  Mode mode = Mode::kLive;
  int64_t first_sample = 0;
  std::map<std::string, at::Tensor> ids;  // [B, S, K] by the name of the selection
};

class KeptRoutes::Kept : public WrappedLayer {
 public:
  Kept(std::unique_ptr<Layer> inner, std::string name, std::shared_ptr<State> state)
      : WrappedLayer(std::move(inner)), name_(std::move(name)), state_(std::move(state)) {}

  at::Tensor forward(at::TensorList inputs, const StepContext& context) override {
    const bool replays = state_->mode == Mode::kReplays && state_->ids.contains(name_);
    NoProbe nobody;  // the margins of scores that choose nothing
    at::Tensor live = inner_->forward(
        inputs, replays ? StepContext{.probe = nobody, .step = context.step} : context);
    if (state_->mode == Mode::kRecords) state_->ids[name_] = live;
    if (!replays) return live;
    return state_->ids.at(name_).narrow(0, state_->first_sample, live.size(0));
  }

 private:
  std::string name_;
  std::shared_ptr<State> state_;
};

KeptRoutes::KeptRoutes(const sim::CaseSpec& spec, Decoder& model) {
  if (!spec.replays_routes) return;
  state_ = std::make_shared<State>();
  for (Slot* slot : model.slots()) {
    if (slot->kind() != SlotKind::kSelection) continue;
    slot->layer = std::make_unique<Kept>(std::move(slot->layer), slot->name, state_);
  }
}

void KeptRoutes::set(Mode mode) {
  if (state_) state_->mode = mode;
}

void KeptRoutes::replay_next(int64_t first_sample) {
  set(Mode::kReplays);
  if (state_) state_->first_sample = first_sample;
}

void KeptRoutes::forget() {
  if (state_) state_->ids.clear();
}

}  // namespace shardproof::golden
