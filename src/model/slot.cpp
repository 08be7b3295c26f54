#include "model/slot.h"

#include <ATen/ATen.h>

namespace shardproof {
namespace {

std::string grad_input_name(const std::string& slot, size_t index) {
  return index == 0 ? slot + ".grad_input" : slot + ".grad_input." + std::to_string(index);
}

// Records the gradient that flows back through `own`, an input of this slot alone.
void watch_gradient(const Slot& slot, const at::Tensor& own, size_t index,
                    const StepContext& context) {
  Observation observation{.kind = ObservationKind::kInputGradient,
                          .name = grad_input_name(slot.name, index),
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
}

}  // namespace

std::vector<std::string> Slot::observed_names() const {
  constexpr size_t kMostInputs = 3;  // of attention
  std::vector<std::string> names = {name + ".output"};
  for (size_t i = 0; i < kMostInputs; ++i) names.push_back(grad_input_name(name, i));
  return names;
}

at::Tensor Slot::operator()(at::TensorList inputs, const StepContext& context) {
  // Each slot gets aliases of its inputs, whose gradients flow back through this slot alone. Runs
  // without a probe make them too, so that gradients are summed in the same order and watching a
  // run changes no bit of it.
  std::vector<at::Tensor> own;
  if (at::GradMode::is_enabled()) {
    const bool watch = context.probe.listens(Phase::kBackward);
    for (size_t i = 0; i < inputs.size(); ++i) {
      own.push_back(inputs[i].requires_grad() ? at::alias(inputs[i]) : inputs[i]);
      if (watch && own[i].requires_grad()) watch_gradient(*this, own[i], i, context);
    }
    inputs = own;
  }
  at::Tensor output = layer->forward(inputs, context);
  if (context.probe.listens(context.forward_phase)) {
    Observation seen{.kind = ObservationKind::kOutput,
                     .name = name + ".output",
                     .phase = context.forward_phase,
                     .step = context.step,
                     .microbatch = context.microbatch,
                     .tensor = output,
                     .layout = output_layout,
                     .token_map = context.token_map};
    if (kind() == SlotKind::kNorm) {
      const std::vector<ParameterPtr> parameters = layer->parameters();
      if (parameters.size() == 1) seen.inputs = {inputs[0], parameters[0]->tensor};
    }
    context.probe.observe(seen);
  }
  return output;
}

}  // namespace shardproof
