// The common part of both kinds of checkpoint in a backward: runs the body again as in the forward.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "random/checkpoint.h"
#include "random/rng_tracker.h"

namespace shardproof {

// The random streams at the first run of a body, and the fork in which it ran.
struct RngMoment {
  RngStates states = {};
  std::string stream = {};
  static RngMoment of(const RngTracker* rng);
};

// Removes undefined tensors from `inputs`, since autograd takes none, and returns `body` as a
// function of the others.
CheckpointBody of_defined(CheckpointBody body, std::vector<at::Tensor>& inputs);

// Leaves without a graph, which take gradients where `inputs` do.
std::vector<at::Tensor> detached_inputs(const std::vector<at::Tensor>& inputs);

// Returns body(inputs) with a graph, from the streams of that moment. The streams are restored
// afterwards, even when the body throws.
std::vector<at::Tensor> run_again(const CheckpointBody& body, const std::vector<at::Tensor>& inputs,
                                  RngTracker* rng, const RngMoment& moment);

// Throws Error(kRefused) when a backward requests only chosen gradients.
void refuse_grad_call();

// Runs the backward of `outputs` (those that have a graph) from `grads`; the leaves get gradients.
void backward_through(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& grads);

}  // namespace shardproof
