// The kept input of a checkpoint, spread over tp: each rank keeps its share of the elements.
//
//   keep      [..] equal on all tp ranks -> this rank's share of its elements in row-major order
//   restore   all_gather of the shares -> [..]
//
// Shares are as even as can be: with 10 elements and tp = 4 they are 3, 3, 2, 2. No communication
// in the forward, one all_gather in the backward of each checkpoint. Only for an input that tp
// ranks hold alike: not for one that sequence parallelism has cut.
//
// Source: Megatron-LM utils.py, split_tensor_into_1d_equal_chunks, gather_split_1d_tensor. There a
// size that tp does not divide loses its last elements, and the shape cannot be restored.
#pragma once

#include <string>

#include "comm/communicator.h"
#include "random/checkpoint.h"

namespace shardproof {

class SpreadActivation final : public KeptActivation {
 public:
  // `label` of the all_gather. `tp` must outlive the backward.
  SpreadActivation(Communicator& tp, std::string label) : tp_(tp), label_(std::move(label)) {}
  at::Tensor keep(const at::Tensor& full) override;
  at::Tensor restore(const at::Tensor& kept, at::IntArrayRef shape) override;

 private:
  std::vector<int64_t> shares(int64_t elements) const;
  Communicator& tp_;
  std::string label_;
};

}  // namespace shardproof
