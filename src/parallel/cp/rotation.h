// How the ranks of a context-parallel axis get to see each other's keys and values.
//
//   kSendRecv     a ring: every step each rank hands what it has to the next rank; at step i rank r
//                 has what rank r - i brought along
//   kAllToAll     the same ring, each step one all_to_all in which only the next rank gets
//   something kAllGather    everything at once, then each rank picks; the gradient returns by
//   reduce_scatter
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "comm/communicator.h"

namespace shardproof {

enum class Rotation { kSendRecv, kAllToAll, kAllGather };
const char* rotation_name(Rotation rotation);  // "send_recv", "all_to_all", "all_gather"

// One tensor on its way: to the next rank, and from the one before. It must not be written to until
// wait() has returned. The ranks give tensors of one shape and dtype.
class Handover {
 public:
  // `rotation`: kSendRecv or kAllToAll. `tag` keeps tensors apart that are under way together.
  Handover(Rotation rotation, const at::Tensor& sent, Communicator& cp, const std::string& label,
           int tag);
  at::Tensor wait();  // what came; once

 private:
  at::Tensor sent_;
  std::vector<PendingCollective> pending_;
};

}  // namespace shardproof
