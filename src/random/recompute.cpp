#include "random/recompute.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/engine.h>

#include "base/error.h"

namespace shardproof {

RngMoment RngMoment::of(const RngTracker* rng) {
  if (rng == nullptr || rng->is_inference()) return {};
  return {.states = rng->states(), .stream = rng->current_stream()};
}

CheckpointBody of_defined(CheckpointBody body, std::vector<at::Tensor>& inputs) {
  std::vector<bool> defined;
  std::vector<at::Tensor> kept;
  for (const at::Tensor& input : inputs) {
    defined.push_back(input.defined());
    if (input.defined()) kept.push_back(input);
  }
  if (kept.size() == inputs.size()) return body;
  inputs = kept;
  return [body = std::move(body), defined](const std::vector<at::Tensor>& given) {
    std::vector<at::Tensor> all;
    auto next = given.begin();
    for (const bool is_defined : defined) all.push_back(is_defined ? *next++ : at::Tensor());
    return body(all);
  };
}

std::vector<at::Tensor> detached_inputs(const std::vector<at::Tensor>& inputs) {
  std::vector<at::Tensor> out;
  out.reserve(inputs.size());
  for (const at::Tensor& input : inputs) {
    at::Tensor leaf = input.detach();
    out.push_back(input.requires_grad() ? leaf.requires_grad_() : leaf);
  }
  return out;
}

std::vector<at::Tensor> run_again(const CheckpointBody& body, const std::vector<at::Tensor>& inputs,
                                  RngTracker* rng, const RngMoment& moment) {
  const at::AutoGradMode with_graph(true);
  if (rng == nullptr || moment.states.empty()) return body(inputs);
  const RngTracker::Recomputing recomputing(*rng, moment.states);
  std::optional<RngTracker::Fork> as_then;
  if (moment.stream != rng->current_stream()) as_then.emplace(rng->fork(moment.stream));
  return body(inputs);
}

void refuse_grad_call() {
  if (torch::autograd::Engine::get_default_engine().is_checkpoint_valid()) return;
  throw_refused(
      "a checkpoint in the backward of grad(): its recomputation would give "
      "gradients to parameters that were not requested",
      "call backward() and read the gradients of the leaves");
}

void backward_through(const std::vector<at::Tensor>& outputs,
                      const std::vector<at::Tensor>& grads) {
  SHARDPROOF_ASSERT(outputs.size() == grads.size(),
                    "the recomputed body gave another number of outputs");
  torch::autograd::variable_list roots, seeds;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined() || !outputs[i].requires_grad() || !grads[i].defined()) continue;
    roots.push_back(outputs[i]);
    seeds.push_back(grads[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, seeds);
}

}  // namespace shardproof
