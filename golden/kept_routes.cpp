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

KeptRoutes::KeptRoutes(const sim::CaseSpec& spec, Decoder& model) {
  if (!spec.replays_routes) return;
  state_ = std::make_shared<State>();
  for (Slot* slot : model.slots(SlotKind::kSelection)) {
    wrap_layer(*slot, [state = state_, name = slot->name](Layer& inner, at::TensorList inputs,
                                                          const StepContext& context) {
      const bool replays = state->mode == Mode::kReplays && state->ids.contains(name);
      NoProbe nobody;  // the margins of scores that choose nothing
      at::Tensor live = inner.forward(
          inputs, replays ? StepContext{.probe = nobody, .step = context.step} : context);
      if (state->mode == Mode::kRecords) state->ids[name] = live;
      if (!replays) return live;
      return state->ids.at(name).narrow(0, state->first_sample, live.size(0));
    });
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
