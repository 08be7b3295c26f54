#include "golden/side_terms.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <set>

#include "golden/dense_side_losses.h"
#include "golden/token_groups.h"
#include "model/layer_slots.h"
#include "model/wrapped_layer.h"

namespace shardproof::golden {
namespace {

using Logits = std::map<int64_t, at::Tensor>;

struct Groups {
  std::vector<int64_t> of_tokens;  // the group of each token; -1 for padding
  std::vector<int64_t> moments;    // when a rank works on each token, -1 for padding
};

Groups groups_of(const sim::CaseSpec& spec, const Batch& batch, LossGroups groups) {
  const Dealt dealt = deal_samples(spec, batch.size());
  const at::Tensor lengths = batch.input_lengths.to(at::kLong).contiguous();
  Groups made;
  for (int64_t sample = 0; sample < batch.size(); ++sample) {
    const auto index = static_cast<size_t>(sample);
    const int64_t moment = dealt.microbatch[index];
    // Microbatches of different shares are different groups.
    const int64_t group =
        groups == LossGroups::kSequence ? sample : dealt.share[index] * batch.size() + moment;
    for (int64_t position = 0; position < batch.seq_len(); ++position) {
      const bool real = position < lengths.data_ptr<int64_t>()[sample];
      made.of_tokens.push_back(real ? group : -1);
      made.moments.push_back(real ? moment : -1);
    }
  }
  return made;
}

// The mean over groups of the pooled loss of each.
at::Tensor pooled_loss(const std::vector<at::Tensor>& layers, const std::vector<int64_t>& groups,
                       const RouterRule& rule) {
  std::set<int64_t> numbers(groups.begin(), groups.end());
  numbers.erase(-1);
  at::Tensor sum = at::zeros({}, layers[0].options());
  for (const int64_t number : numbers) {
    std::vector<int64_t> alone;
    for (const int64_t group : groups) alone.push_back(group == number ? 0 : -1);
    sum = sum + dense_pooled_loss(layers, alone, rule);
  }
  return sum / static_cast<double>(numbers.size());
}

}  // namespace

SideTerms::SideTerms(const sim::CaseSpec& spec, Decoder& model)
    : spec_(spec),
      options_(side_losses_of(spec)),
      rule_(model.config().router),
      logits_(std::make_shared<Logits>()) {
  if (!options_.any()) return;
  visit_layer_slots(model, SlotKind::kRouteWeights, [this](int64_t layer, Slot& slot) {
    slots_[layer] = slot.name;
    wrap_layer(slot, [logits = logits_, layer](Layer& inner, at::TensorList inputs,
                                               const StepContext& context) {
      (*logits)[layer] = inputs[0];
      return inner.forward(inputs, context);
    });
  });
}

SideTerms::Terms SideTerms::of(const Batch& batch) const {
  if (!options_.any()) return {};
  Sums sums = sums_of(batch, *logits_);
  const bool both = sums.balance.defined() && sums.z.defined();
  return {.sum = both                     ? sums.balance + sums.z
                 : sums.balance.defined() ? sums.balance
                                          : sums.z,
          .values = std::move(sums.values)};
}

std::vector<SideTerms::Part> SideTerms::parts(const Batch& batch) const {
  std::vector<Part> parts;
  if (!options_.any()) return parts;
  Logits leaves;  // so that no gradient comes by way of later layers
  std::vector<at::Tensor> inputs;
  for (const auto& [layer, logits] : *logits_) {
    inputs.push_back(leaves[layer] = logits.detach().requires_grad_(true));
  }
  const Sums sums = sums_of(batch, leaves);
  for (const auto& [sum, kind] : {std::pair(sums.balance, ".balance"), std::pair(sums.z, ".z")}) {
    if (!sum.defined()) continue;
    const auto gradients = torch::autograd::grad({sum}, inputs);
    auto gradient = gradients.begin();
    for (const auto& [layer, slot] : slots_) {
      parts.push_back({slot + ".grad_input" + kind, *gradient++});
    }
  }
  for (const auto& [layer, logits] : leaves) add_scores(slots_.at(layer), logits, parts);
  return parts;
}

// dS_i / dl_j of a token's scores S is s_j * ((i == j) - S_i), with the slopes s.
void SideTerms::add_scores(const std::string& slot, const at::Tensor& logits,
                           std::vector<Part>& parts) const {
  const at::Tensor rows = logits.detach().flatten(0, 1);
  const at::Tensor scores = dense_scores(rows, rule_);
  const at::Tensor powers = 1 / (1 + (-rows).exp());
  const bool sigmoid = rule_.scores == RouterScores::kSigmoid;
  const at::Tensor slopes = sigmoid ? scores * (1 - powers) : scores;
  parts.push_back({slot + ".grad_input.scores", scores.view_as(logits)});
  parts.push_back({slot + ".grad_input.slopes", slopes.view_as(logits)});
}

SideTerms::Sums SideTerms::sums_of(const Batch& batch, const Logits& of_layers) const {
  Sums sums;
  const Groups groups = groups_of(spec_, batch, options_.groups);
  const auto add_to = [&sums](at::Tensor& sum, const std::string& name, double coefficient,
                              const at::Tensor& loss) {
    sums.values[name] = loss.item<double>();
    const at::Tensor addend = coefficient * loss;
    sum = sum.defined() ? sum + addend : addend;
  };
  std::vector<at::Tensor> all;
  for (const auto& [layer, logits] : of_layers) {
    const at::Tensor rows = logits.flatten(0, 1);
    all.push_back(rows);
    if (options_.balance != 0 && options_.form == BalancingForm::kPerLayer) {
      const bool global = options_.groups == LossGroups::kGlobal;
      add_to(sums.balance, fmt::format("aux_loss.{}", layer), options_.balance,
             global ? dense_balancing_loss_so_far(rows, groups.of_tokens, groups.moments, rule_)
                    : dense_balancing_loss(rows, groups.of_tokens, rule_));
    }
    if (options_.z != 0) {
      add_to(sums.z, fmt::format("z_loss.{}", layer), options_.z,
             dense_z_loss(rows, groups.of_tokens));
    }
  }
  if (options_.balance != 0 && options_.form == BalancingForm::kPooled) {
    add_to(sums.balance, "aux_loss", options_.balance, pooled_loss(all, groups.of_tokens, rule_));
  }
  return sums;
}

}  // namespace shardproof::golden
