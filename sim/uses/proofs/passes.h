// Leaves and backwards, which the plain and the sharded run of a workload share.
#pragma once

#include <string>

#include "observe/probe.h"
#include "sim/case/case_spec.h"
#include "sim/uses/proofs/workload.h"

namespace shardproof::sim::proofs {

// A leaf: a floating tensor in `dtype` with a gradient, any other tensor unchanged.
at::Tensor leaf_of(const at::Tensor& tensor, at::ScalarType dtype, const at::Device& device);

// The full gradient that enters at an output of `shape`: float64, different at each position.
at::Tensor gradient_at_output(int64_t seed, const std::string& output,
                              const std::vector<int64_t>& shape);

// The backward of all outputs that carry a gradient, except those with undefined `gradients`.
void run_backward(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& gradients);

// The leaf's gradient, zeros if no backward reached it; undefined for integers.
at::Tensor gradient_of_leaf(const at::Tensor& leaf);

// The same values in strided memory: the first and the last dim are swapped there.
at::Tensor transposed_memory(const at::Tensor& tensor);

// Of [.., V] in its own dtype. Below float64 it is x less the log of the sum of e^x, with the
// rounding of that log, which all probabilities of a row share; in float64 it has none that grows
// with x.
at::Tensor log_softmax_of_rows(const at::Tensor& logits);

}  // namespace shardproof::sim::proofs
