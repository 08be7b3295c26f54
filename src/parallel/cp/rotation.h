// How the ranks of a context-parallel axis exchange keys and values.
//
//   kSendRecv     a ring: in every step each rank sends its block to the next rank; at step i rank
//   r
//                 has the block of rank r - i
//   kAllToAll     the same ring; each step is one all_to_all that gives only the next rank a block
//   kAllGather    one all_gather, then each rank selects; the gradient returns by reduce_scatter
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "base/training_choices.h"
#include "comm/communicator.h"

namespace shardproof {

// One tensor in transit to the next rank, and one from the previous rank. Do not write to it before
// wait() has returned. All ranks must pass tensors of one shape and dtype.
class Handover {
 public:
  // `rotation` must be kSendRecv or kAllToAll. `tag` tells concurrent tensors apart.
  Handover(Rotation rotation, const at::Tensor& sent, Communicator& cp, const std::string& label,
           int tag);
  at::Tensor wait();  // returns the received tensor; call it once

 private:
  at::Tensor sent_;
  std::vector<PendingCollective> pending_;
};

}  // namespace shardproof
