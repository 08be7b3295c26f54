// Tensors for the tests of tensor-parallel layers: parts of full ones, leaves, and a layer's run.
#pragma once

#include <string>
#include <vector>

#include "model/slot.h"
#include "tests/support/rank_results.h"
#include "tests/support/said_by.h"

namespace shardproof::tests {

// A rank's part of dim, of which each block is cut evenly; without blocks the dim is one.
inline at::Tensor part_at(const at::Tensor& full, int64_t dim, int64_t rank, int64_t size,
                          std::vector<int64_t> blocks = {}) {
  if (blocks.empty()) blocks = {full.size(dim)};
  std::vector<at::Tensor> pieces;
  int64_t start = 0;
  for (const int64_t block : blocks) {
    const int64_t length = block / size;
    pieces.push_back(full.narrow(dim, start + rank * length, length));
    start += block;
  }
  return at::cat(pieces, dim);
}

inline at::Tensor own_part(const at::Tensor& full, int64_t dim, const Communicator& tp,
                           const std::vector<int64_t>& blocks = {}) {
  return part_at(full, dim, tp.rank(), tp.size(), blocks);
}

inline ParameterPtr leaf(const std::string& name, const at::Tensor& value) {
  return std::make_shared<Parameter>(Parameter{.name = name,
                                               .tensor = value.detach().clone().requires_grad_(),
                                               .global_shape = value.sizes().vec()});
}

// This rank's leaf of a parameter; with dim -1 the whole.
inline ParameterPtr cut_parameter(const at::Tensor& full, int64_t dim, const Communicator& tp,
                                  const std::vector<int64_t>& blocks = {}) {
  return leaf("part", dim < 0 ? full : own_part(full, dim, tp, blocks));
}

inline at::Tensor run_layer(Layer& layer, const at::Tensor& input) {
  NoProbe nobody;
  return layer.forward({input}, StepContext{.probe = nobody});
}

// Runs a layer that has its tokens in dim 1 on an input that has them in dim 0.
inline at::Tensor run_tokens_first(Layer& layer, const at::Tensor& input) {
  return run_layer(layer, input.transpose(0, 1)).transpose(0, 1);
}

}  // namespace shardproof::tests
