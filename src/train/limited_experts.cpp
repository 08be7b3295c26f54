#include "train/limited_experts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "model/layer_slots.h"
#include "model/moe/capacity.h"
#include "model/wrapped_layer.h"
#include "train/router_tokens.h"

namespace shardproof {

LimitedExperts::LimitedExperts(Decoder& model, const CapacityRule& rule, const TokenCuts& cuts,
                               MeshComm& comm, at::Device device)
    : options_(rule),
      rule_(model.config().router),
      sequence_axes_(axes_of_sequences(cuts, comm.mesh())),
      comm_(comm),
      device_(device) {
  visit_layer_slots(model, SlotKind::kExperts, [this](int64_t layer, Slot& slot) {
    wrap_layer(slot,
               [this, layer](Layer& inner, at::TensorList inputs, const StepContext& context) {
                 const at::Tensor kept = kept_ids(layer, inputs[1], inputs[2], context);
                 return inner.forward({inputs[0], kept, inputs[2]}, context);
               });
  });
}

void LimitedExperts::begin(int64_t seq_len) {
  active_ = true;
  seq_len_ = seq_len;
  dropped_.clear();
}

at::Tensor LimitedExperts::kept_ids(int64_t layer, const at::Tensor& ids, const at::Tensor& weights,
                                    const StepContext& context) {
  if (!active_) return ids;
  const at::NoGradGuard no_grad;
  at::Tensor tokens = tokens_of_router(context.token_map, ids.size(1), comm_).reshape({-1});
  at::Tensor all_ids = ids.flatten(0, 1), all_weights = weights.detach().flatten(0, 1);
  const int64_t own = tokens.size(0);
  int64_t first = 0;
  const bool by_sequence = options_.scope == CapacityScope::kSequence;
  if (by_sequence) {  // ranks that share sequences have equally many tokens, with padding
    Communicator& ranks = comm_.along(sequence_axes_);
    const std::string label = fmt::format("model.layers.{}.mlp.experts.capacity ", layer);
    tokens = ranks.all_gather(tokens.to(device_), 0, label + "tokens").cpu();
    all_ids = ranks.all_gather(all_ids, 0, label + "ids");
    all_weights = ranks.all_gather(all_weights, 0, label + "weights");
    first = ranks.rank() * own;
  }
  // In the order of (sample, position), which decides between equal weights.
  const at::Tensor order = tokens.argsort(/*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor in_order = tokens.index({order});
  const at::Tensor groups =
      by_sequence ? in_order.div(seq_len_, "floor") : at::zeros_like(in_order);
  const at::Tensor kept =
      routes_within_capacity(all_ids.cpu().index({order}), all_weights.cpu().index({order}),
                             groups.masked_fill(in_order.lt(0), -1), rule_, options_)
          .kept;
  const at::Tensor back = at::empty_like(kept).index_copy_(0, order, kept).narrow(0, first, own);
  const at::Tensor stays = back.to(ids.device()).view_as(ids);
  dropped_[{layer, context.microbatch}] =
      ids.ge(0).logical_and(stays.logical_not()).sum().item<int64_t>();
  return ids.masked_fill(stays.logical_not(), -1);
}

int64_t LimitedExperts::take_dropped() {
  int64_t own = 0;
  for (const auto& [key, count] : dropped_) own += count;
  dropped_.clear();
  return comm_.world()
      .all_reduce(at::tensor({own}, at::kLong).to(device_), ReduceOp::kSum, "dropped routes")
      .item<int64_t>();
}

}  // namespace shardproof
