#include "parallel/cp/rotation.h"

#include <ATen/ATen.h>

#include "base/error.h"

namespace shardproof {

Handover::Handover(Rotation rotation, const at::Tensor& sent, Communicator& cp,
                   const std::string& label, int tag)
    : sent_(sent) {
  const int64_t size = cp.size();
  const int64_t next = (cp.rank() + 1) % size, previous = (cp.rank() + size - 1) % size;
  if (rotation == Rotation::kSendRecv) {
    pending_ = cp.send_recv_async(sent, next, previous, label, tag);
    return;
  }
  SHARDPROOF_ASSERT(rotation == Rotation::kAllToAll, "an all_gather hands nothing over");
  std::vector<int64_t> to(static_cast<size_t>(size), 0), from(static_cast<size_t>(size), 0);
  to[static_cast<size_t>(next)] = sent.numel();
  from[static_cast<size_t>(previous)] = sent.numel();
  pending_.push_back(cp.all_to_all_async(sent.reshape(-1), label, to, from));
}

at::Tensor Handover::wait() {
  SHARDPROOF_ASSERT(!pending_.empty(), "a handover is waited for once");
  at::Tensor received;
  for (PendingCollective& pending : pending_) {
    const at::Tensor result = pending.wait();
    if (!received.defined()) received = result;
  }
  pending_.clear();
  return received.view(sent_.sizes());
}

}  // namespace shardproof
