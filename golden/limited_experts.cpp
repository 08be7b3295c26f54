#include "golden/limited_experts.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "golden/dense_capacity.h"
#include "golden/token_groups.h"
#include "model/wrapped_layer.h"

namespace shardproof::golden {

struct LimitedExperts::State {
  RouterRule router;
  CapacityRule rule;
  std::vector<int64_t> groups;  // of each token; empty: nothing is dropped now
  int64_t dropped = 0;
};

LimitedExperts::LimitedExperts(const sim::CaseSpec& spec, Decoder& model) : spec_(spec) {
  if (spec.capacity.factor == 0) return;
  state_ = std::make_shared<State>();
  state_->router = model.config().router;
  state_->rule = spec.capacity;
  for (Slot* slot : model.slots(SlotKind::kExperts)) {
    wrap_layer(*slot, [state = state_, name = slot->name](Layer& inner, at::TensorList inputs,
                                                          const StepContext& context) {
      if (state->groups.empty()) return inner.forward(inputs, context);
      const at::Tensor ids = inputs[1].flatten(0, 1), weights = inputs[2].flatten(0, 1);
      const at::Tensor zeros = at::zeros({ids.size(0), state->router.num_experts},
                                         weights.options().requires_grad(false));
      const at::Tensor chosen = zeros.scatter(1, ids, 1).to(at::kBool);
      const DenseKept kept = keep_within_capacity(chosen, zeros.scatter(1, ids, weights.detach()),
                                                  state->groups, state->router, state->rule);
      if (kept.margin < kLeastMargin) {
        throw_refused(fmt::format("{} drops one of two routes whose weights differ by {:.1e}, so "
                                  "that roundings could decide",
                                  name, kept.margin),
                      "choose another seed");
      }
      for (size_t t = 0; t < state->groups.size(); ++t) {
        if (state->groups[t] < 0) continue;
        const auto row = static_cast<int64_t>(t);
        state->dropped += chosen[row].sum().item<int64_t>() - kept.kept[row].sum().item<int64_t>();
      }
      const at::Tensor stays = kept.kept.gather(1, ids).to(weights.scalar_type());
      return inner.forward({inputs[0], inputs[1], inputs[2] * stays.view_as(inputs[2])}, context);
    });
  }
}

void LimitedExperts::begin(const Batch& batch) {
  if (!active()) return;
  const Dealt dealt = deal_samples(spec_, batch.size());
  const std::vector<int64_t> ranks = ranks_of_positions(spec_.parallel, batch.seq_len());
  const at::Tensor lengths = batch.input_lengths.to(at::kLong).contiguous();
  state_->dropped = 0;
  state_->groups.clear();
  for (int64_t sample = 0; sample < batch.size(); ++sample) {
    const auto index = static_cast<size_t>(sample);
    const int64_t microbatch = dealt.share[index] * batch.size() + dealt.microbatch[index];
    for (int64_t position = 0; position < batch.seq_len(); ++position) {
      const int64_t of_rank = microbatch * batch.seq_len() + ranks[static_cast<size_t>(position)];
      const bool real = position < lengths.data_ptr<int64_t>()[sample];
      const bool by_rank = spec_.capacity.scope == CapacityScope::kRank;
      state_->groups.push_back(!real ? -1 : by_rank ? of_rank : sample);
    }
  }
}

int64_t LimitedExperts::end() {
  if (!active()) return 0;
  state_->groups.clear();
  return state_->dropped;
}

}  // namespace shardproof::golden
