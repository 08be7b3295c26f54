// What the plain and the sharded run of a workload do alike: leaves, and the pass back.
#pragma once

#include <string>

#include "observe/probe.h"
#include "sim/case/case_spec.h"
#include "sim/proofs/workload.h"

namespace shardproof::sim {

// A leaf: floating tensors in `dtype` with a gradient, others as they are.
at::Tensor leaf_of(const at::Tensor& tensor, at::ScalarType dtype, const at::Device& device);

// The full gradient that enters at an output of `shape`, float64, another value at each position.
at::Tensor gradient_at_output(int64_t seed, const std::string& output,
                              const std::vector<int64_t>& shape);

// Back from all outputs that carry a gradient; `gradients` undefined: not from that one.
void run_backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients);

// The leaf's gradient, zeros where the pass back did not reach it; undefined of integers.
at::Tensor gradient_of_leaf(const at::Tensor& leaf);

// The same values, not contiguous: in memory the first and the last dim have changed places.
at::Tensor transposed_memory(const at::Tensor& tensor);

}  // namespace shardproof::sim
