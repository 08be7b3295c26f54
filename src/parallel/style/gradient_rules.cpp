#include "parallel/style/gradient_rules.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof {
namespace {

// Of the ranks that hold a parameter, those that differ from this one on the axis alone; one rank
// if this one does not hold it.
std::vector<int64_t> holders_along(const Parameter& parameter, const std::string& axis,
                                   const MeshComm& comm) {
  for (const Cut& cut : parameter.layout.cuts()) {
    if (cut.kind != Cut::Kind::kHeldBy || cut.axis != axis) continue;
    const std::vector<int64_t> peers = comm.mesh().peers_along(axis, comm.rank());
    std::vector<int64_t> holders;
    for (const int64_t coordinate : cut.coordinates) {
      holders.push_back(peers[static_cast<size_t>(coordinate)]);
    }
    const bool here = std::find(holders.begin(), holders.end(), comm.rank()) != holders.end();
    return here ? holders : std::vector<int64_t>{comm.rank()};
  }
  SHARDPROOF_ASSERT(false, parameter.name + " is held by every rank of " + axis);
}

}  // namespace

std::vector<std::string> mean_axes(const GradientRule& rule,
                                   const std::vector<std::string>& token_axes) {
  return rule.mean_over.value_or(token_axes);
}

void apply_gradient_rules(const std::vector<ParameterPtr>& parameters,
                          std::vector<at::Tensor>& grads, MeshComm& comm,
                          const std::vector<std::string>& token_axes,
                          std::optional<at::Device> device) {
  SHARDPROOF_ASSERT(parameters.size() == grads.size(), "one gradient per parameter");
  const at::NoGradGuard no_grad;
  const auto ranks_of = [&comm](const std::vector<std::string>& axes) {
    return static_cast<double>(comm.mesh().peers_along(axes, comm.rank()).size());
  };
  for (size_t i = 0; i < grads.size(); ++i) {
    const Parameter& parameter = *parameters[i];
    const GradientRule& rule = parameter.rule;
    SHARDPROOF_ASSERT(grads[i].defined(), parameter.name + " has no gradient: give zeros");
    if (!parameter.trainable) continue;
    // The gradient may be a part of a larger buffer, so it is written in place.
    const auto sum_over = [&](Communicator& ranks) {
      const at::Tensor here = grads[i].to(device.value_or(grads[i].device()));
      grads[i].copy_(ranks.all_reduce(here, ReduceOp::kSum, "grad." + parameter.name));
    };
    if (!rule.sum_over.empty()) sum_over(comm.along(rule.sum_over));
    if (!rule.sum_over_holders.empty()) {
      const auto holders = holders_along(parameter, rule.sum_over_holders, comm);
      const std::string name = rule.sum_over_holders + " holders of " + parameter.name;
      if (holders.size() > 1) sum_over(comm.of_ranks(name, holders));
    }
    if (rule.mean_over) grads[i].mul_(ranks_of(*rule.mean_over) / ranks_of(token_axes));
  }
}

}  // namespace shardproof
