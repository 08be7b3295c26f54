#include "train/side_losses.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/layer_slots.h"
#include "model/wrapped_layer.h"
#include "train/router_tokens.h"

namespace shardproof {
namespace {

// Groups with a token, of a microbatch on the ranks that share its samples.
int64_t real_groups(const Microbatch& micro, LossGroups groups, int64_t seq_len) {
  const at::Tensor real = micro.token_map.masked_select(micro.token_map.ge(0));
  if (groups != LossGroups::kSequence) return real.numel() > 0 ? 1 : 0;
  return std::get<0>(at::_unique(real.div(seq_len, "floor"))).numel();
}

}  // namespace

SideLosses::SideLosses(Decoder& model, const SideLossOptions& options, const TokenCuts& cuts,
                       MeshComm& comm, at::Device device)
    : options_(options),
      rule_(model.config().router),
      cuts_(cuts),
      comm_(comm),
      device_(device),
      sequence_axes_(axes_of_sequences(cuts, comm.mesh())) {
  visit_layer_slots(model, SlotKind::kRouteWeights, [this](int64_t layer, Slot& slot) {
    layers_.push_back(layer);
    wrap_layer(slot,
               [this, layer](Layer& inner, at::TensorList inputs, const StepContext& context) {
                 return attach(layer, inputs[0], inner.forward(inputs, context), context);
               });
  });
}

void SideLosses::begin(const std::vector<Microbatch>& microbatches, const Batch& batch,
                       double factor) {
  active_ = true;
  seq_len_ = batch.seq_len();
  samples_ = batch.size();
  factor_ = factor;
  parts_.clear();
  int64_t own = 0;
  for (const Microbatch& micro : microbatches) own += real_groups(micro, options_.groups, seq_len_);
  const at::Tensor all =
      comm_.along(cuts_.sample_axes)
          .all_reduce(at::tensor({own}, at::kLong).to(device_), ReduceOp::kSum, "side loss groups");
  group_count_ = static_cast<double>(std::max<int64_t>(all.item<int64_t>(), 1));
}

// [t] int64, -1 for padding.
at::Tensor SideLosses::groups_of(const at::Tensor& own_tokens) const {
  const at::Tensor tokens = own_tokens.reshape({-1});
  const at::Tensor groups = options_.groups == LossGroups::kSequence ? tokens.div(seq_len_, "floor")
                                                                     : at::zeros_like(tokens);
  return groups.masked_fill(tokens.lt(0), -1);
}

at::Tensor SideLosses::attach(int64_t layer, const at::Tensor& logits, const at::Tensor& weights,
                              const StepContext& context) {
  if (!active_) return weights;
  const at::Tensor groups =
      groups_of(tokens_of_router(context.token_map, logits.size(1), comm_)).to(logits.device());
  const int64_t group_count = options_.groups == LossGroups::kSequence ? samples_ : 1;
  const std::string label = fmt::format("counts of the routes of layer {}", layer);

  const at::Tensor rows = logits.flatten(0, 1);
  const BalancingSums own = balancing_sums(rows, groups, group_count, rule_);
  const at::Tensor counted =
      comm_.along(sequence_axes_)
          .all_reduce(at::cat({own.counts, own.tokens.unsqueeze(1)}, 1), ReduceOp::kSum, label);
  Part& part = parts_[{context.microbatch, layer}];
  part.sums = {.counts = counted.narrow(1, 0, rule_.num_experts),
               .scores = own.scores.detach(),
               .tokens = counted.select(1, rule_.num_experts)};
  if (options_.groups == LossGroups::kGlobal) {
    const at::Tensor all =
        comm_.along(cuts_.sample_axes).all_reduce(counted, ReduceOp::kSum, label + " of all")[0];
    part.all_counts = all.narrow(0, 0, rule_.num_experts);
    part.all_tokens = all[rule_.num_experts].item<int64_t>();
  }

  at::Tensor carrier = weights;
  const double share = 1 / group_count_;
  if (options_.balance != 0 && options_.form == BalancingForm::kPooled) {
    part.gradient = at::zeros_like(part.sums.scores);
    fill_pooled_gradients(context.microbatch);
    carrier = with_later_gradient(carrier, own.scores, part.gradient);
  } else if (options_.balance != 0) {
    const at::Tensor loss = balancing(part, own, layer, context.microbatch) * share;
    part.balance = loss.item<double>();
    carrier = with_side_loss(carrier, loss, factor_ * options_.balance);
  }
  if (options_.z != 0) {
    const at::Tensor parts_of_groups =
        own.tokens.to(rows.scalar_type()) / part.sums.tokens.clamp_min(1).to(rows.scalar_type());
    const at::Tensor loss = (z_losses(rows, groups, group_count) * parts_of_groups).sum() * share;
    part.z = loss.item<double>();
    carrier = with_side_loss(carrier, loss, factor_ * options_.z);
  }
  return carrier;
}

// The part of this rank's tokens, a scalar.
at::Tensor SideLosses::balancing(const Part& part, const BalancingSums& own, int64_t layer,
                                 int64_t microbatch) const {
  const BalancingSums sums{
      .counts = part.sums.counts, .scores = own.scores, .tokens = part.sums.tokens};
  if (options_.groups != LossGroups::kGlobal) return balancing_losses(sums, rule_).sum();
  at::Tensor counts = at::zeros_like(part.all_counts);
  int64_t tokens = 0;
  for (int64_t i = 0; i <= microbatch; ++i) {
    const Part& before = parts_.at({i, layer});
    counts = counts + before.all_counts;
    tokens += before.all_tokens;
  }
  return balancing_losses_of_counts(sums, counts, tokens, rule_).sum();
}

// loss = N sum_i C_i S_i / T^2 of each group, with C, S and T summed over all layers.
void SideLosses::fill_pooled_gradients(int64_t microbatch) {
  const at::NoGradGuard no_grad;
  at::Tensor counts, tokens;
  std::vector<Part*> parts;
  for (const int64_t layer : layers_) {
    const auto found = parts_.find({microbatch, layer});
    if (found == parts_.end()) return;  // a later layer fills them
    Part& part = found->second;
    counts = counts.defined() ? counts + part.sums.counts : part.sums.counts;
    tokens = tokens.defined() ? tokens + part.sums.tokens : part.sums.tokens;
    parts.push_back(&part);
  }
  const at::ScalarType type = parts[0]->sums.scores.scalar_type();
  const at::Tensor divisor = tokens.clamp_min(1).to(type).unsqueeze(1);
  const at::Tensor slopes =
      counts.to(type) / (divisor * divisor) * static_cast<double>(rule_.num_experts) / group_count_;
  for (Part* part : parts) part->gradient.copy_(slopes * (factor_ * options_.balance));
}

std::map<std::string, double> SideLosses::take_values() {
  const bool pooled = options_.form == BalancingForm::kPooled;
  std::map<std::string, double> values;
  if (options_.balance != 0 && pooled) values["aux_loss"] = 0;
  for (const int64_t layer : layers_) {
    if (options_.balance != 0 && !pooled) values[fmt::format("aux_loss.{}", layer)] = 0;
    if (options_.z != 0) values[fmt::format("z_loss.{}", layer)] = 0;
  }
  std::map<int64_t, std::vector<BalancingSums>> by_microbatch;
  for (const auto& [key, part] : parts_) {
    by_microbatch[key.first].push_back(part.sums);
    if (options_.balance != 0 && !pooled) {
      values.at(fmt::format("aux_loss.{}", key.second)) += part.balance;
    }
    if (options_.z != 0) values.at(fmt::format("z_loss.{}", key.second)) += part.z;
  }
  for (const auto& [microbatch, layers] : by_microbatch) {
    if (options_.balance == 0 || !pooled) break;
    for (int64_t group = 0; group < layers[0].tokens.size(0); ++group) {
      std::vector<BalancingSums> of_group;
      for (const BalancingSums& sums : layers) {
        of_group.push_back({.counts = sums.counts.narrow(0, group, 1),
                            .scores = sums.scores.narrow(0, group, 1),
                            .tokens = sums.tokens.narrow(0, group, 1)});
      }
      values["aux_loss"] += pooled_balancing_loss(of_group, rule_).item<double>() / group_count_;
    }
  }
  std::vector<double> own;
  for (const auto& [name, value] : values) own.push_back(value);
  const at::Tensor all =
      comm_.world()
          .all_reduce(at::tensor(own, at::kDouble).to(device_), ReduceOp::kSum, "side losses")
          .cpu();
  int64_t next = 0;
  for (auto& [name, value] : values) value = all[next++].item<double>();
  parts_.clear();
  return values;
}

}  // namespace shardproof
