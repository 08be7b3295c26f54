#include "model/slot.h"

#include <ATen/ATen.h>

namespace shardproof {
namespace {

std::string grad_input_name(const std::string& slot, size_t index) {
  return index == 0 ? slot + ".grad_input" : slot + ".grad_input." + std::to_string(index);
}

// An alias of `input` whose gradient is what flows back through this slot alone, recorded on its way.
at::Tensor watch_gradient(const Slot& slot, const at::Tensor& input, size_t index,
                          const StepContext& context) {
  const at::Tensor own = at::alias(input);
  Observation observation{.name = grad_input_name(slot.name, index),
                          .phase = Phase::kBackward,
                          .step = context.step,
                          .microbatch = context.microbatch,
                          .tensor = {},
                          .token_map = context.token_map,
                          .scale = context.grad_scale};
  if (!slot.input_layouts.empty()) {
    observation.layout = slot.input_layouts[std::min(index, slot.input_layouts.size() - 1)];
  }
  if (index < slot.input_partial_axes.size() && !slot.input_partial_axes[index].empty()) {
    observation.part = Part::kPartial;
    observation.partial_axes = slot.input_partial_axes[index];
  }
  Probe* probe = &context.probe;
  own.register_hook([observation, probe](const at::Tensor& grad) {
    Observation seen = observation;
    seen.tensor = grad;
    probe->observe(seen);
  });
  return own;
}

}  // namespace

at::Tensor Slot::operator()(at::TensorList inputs, const StepContext& context) {
  std::vector<at::Tensor> watched;
  if (at::GradMode::is_enabled() && context.probe.listens(Phase::kBackward)) {
    for (size_t i = 0; i < inputs.size(); ++i) {
      watched.push_back(inputs[i].requires_grad() ? watch_gradient(*this, inputs[i], i, context)
                                                  : inputs[i]);
    }
    inputs = watched;
  }
  at::Tensor output = layer->forward(inputs, context);
  if (context.probe.listens(context.forward_phase)) {
    context.probe.observe({.name = name + ".output",
                           .phase = context.forward_phase,
                           .step = context.step,
                           .microbatch = context.microbatch,
                           .tensor = output,
                           .layout = output_layout,
                           .token_map = context.token_map});
  }
  return output;
}

}  // namespace shardproof
