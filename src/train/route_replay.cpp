#include "train/route_replay.h"

#include <ATen/ATen.h>

#include "model/layer_slots.h"
#include "model/wrapped_layer.h"
#include "train/router_tokens.h"

namespace shardproof {

RouteReplay::RouteReplay(Decoder& model, MeshComm& comm, at::Device device)
    : rule_(model.config().router), comm_(comm), device_(device) {
  const int64_t layers = model.config().num_hidden_layers;
  visit_layer_slots(model, SlotKind::kSelection, [&](int64_t layer, Slot& slot) {
    if (layer >= layers) return;  // extra heads make no scores, and choose anew
    layers_.push_back(layer);
    wrap_layer(slot,
               [this, layer](Layer& inner, at::TensorList inputs, const StepContext& context) {
                 return ids(layer, inner.forward(inputs, context), context);
               });
  });
}

void RouteReplay::begin_record(int64_t samples, int64_t positions) {
  made_ = empty_route_record(samples, positions, layers_, rule_.num_chosen, rule_.num_experts);
}

void RouteReplay::end_record() {
  made_->ids = comm_.world()
                   .all_reduce(made_->ids.to(device_), ReduceOp::kMax, "routes of the scores")
                   .cpu();
  kept_ = std::move(made_);
  made_.reset();
}

void RouteReplay::begin_replay(int64_t first_sample) {
  replays_ = true;
  first_sample_ = first_sample;
}

at::Tensor RouteReplay::ids(int64_t layer, const at::Tensor& live, const StepContext& context) {
  const bool replays = replays_ && kept_;
  if (!made_ && !replays) return live;
  const at::Tensor tokens = tokens_of_router(context.token_map, live.size(1), comm_);
  if (made_) {
    record_routes(*made_, layer, tokens, live.cpu());
    return live;
  }
  const int64_t before = first_sample_ * kept_->ids.size(1);
  const at::Tensor places = at::where(tokens.ge(0), tokens + before, tokens);
  return replay_routes(*kept_, layer, places, live.cpu()).ids.to(live.device());
}

}  // namespace shardproof
