// The saved input of a checkpoint, spread over tp: each rank keeps its share of the elements.
//
//   keep      [..] equal on all tp ranks -> this rank's share of its elements in row-major order
//   restore   all_gather of the shares -> [..]
//
// Shares are as even as possible: 10 elements over tp = 4 give 3, 3, 2, 2. The forward communicates
// nothing, and the backward of each checkpoint makes one all_gather. All tp ranks must hold the
// same input, so it may not be cut by sequence parallelism.
//
// Source: Megatron-LM utils.py, split_tensor_into_1d_equal_chunks, gather_split_1d_tensor. They
// lose the last elements when tp does not divide the size, and cannot restore the shape.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "random/checkpoint.h"

namespace shardproof {

class SpreadActivation final : public KeptActivation {
 public:
  // `label` is that of the all_gather. `tp` must outlive the backward.
  SpreadActivation(Communicator& tp, std::string label) : tp_(tp), label_(std::move(label)) {}
  at::Tensor keep(const at::Tensor& full) override;
  at::Tensor restore(const at::Tensor& kept, at::IntArrayRef shape) override;

 private:
  std::vector<int64_t> shares(int64_t elements) const;
  Communicator& tp_;
  std::string label_;
};

}  // namespace shardproof
