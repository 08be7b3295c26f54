// What both kinds of checkpoint do in a backward: run the body again as the forward ran it.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "random/checkpoint.h"
#include "random/rng_tracker.h"

namespace shardproof {

// The random streams as they were when a body ran first, and the fork that it ran in.
struct RngMoment {
  RngStates states = {};
  std::string stream = {};
  static RngMoment of(const RngTracker* rng);
};

// `body` of the defined ones of `inputs` only, which keeps those: autograd takes no others.
CheckpointBody of_defined(CheckpointBody body, std::vector<at::Tensor>& inputs);

// Leaves without a graph behind them, which take gradients where `inputs` do.
std::vector<at::Tensor> detached_inputs(const std::vector<at::Tensor>& inputs);

// body(inputs) with a graph, from that moment's streams; afterwards the streams are as before,
// also when the body throws.
std::vector<at::Tensor> run_again(const CheckpointBody& body, const std::vector<at::Tensor>& inputs,
                                  RngTracker* rng, const RngMoment& moment);

// Throws Error(kRefused) where a backward only asks for chosen gradients.
void refuse_grad_call();

// Back through `outputs` (those that have a graph) from `grads`; the leaves hold their gradients.
void backward_through(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& grads);

}  // namespace shardproof
