// Weights of a sharded trainer handed to inference ranks outside of it, which hold them cut in
// another way.
//
//   trainer dp 2 x tp 2     0 1 2 3        pieces of a tensor go to rank 0, in the receiver's dtype
//                           |
//   refit group             0 - 4 5 6      full tensors, as many at a time as a byte budget takes
//   inference tp 3              4 5 6      each keeps what its own layout cuts from them
//
// Source: NeMo-RL dtensor_policy_worker.py, prepare_refit_info, broadcast_weights_for_collective,
// prepare_weights_for_ipc and get_weights_ipc_handles. There every trainer rank gathers every full
// tensor, and integer buffers are cast to the training dtype; here rank 0 alone does, and they keep
// theirs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "parallel/reshard/held_tensor.h"
#include "train/trainer.h"

namespace shardproof {

// What a receiver has to know of each tensor before the first one comes.
struct RefitTensor {
  std::string key;  // Hugging Face name
  std::vector<int64_t> shape;
  at::ScalarType dtype;
  int64_t bytes() const;
  bool operator==(const RefitTensor&) const = default;
};
using RefitInfo = std::vector<RefitTensor>;

enum class RefitPath {
  kBroadcast,    // of each bucket, over the refit group
  kSharedMemory  // the host's: trainer rank 0 and all receivers on one machine; no collective moves
                 // weights. On GPUs through the host too: CUDA's IPC handles are not used
};

struct RefitOptions {
  at::ScalarType dtype = at::kBFloat16;  // of floating-point tensors at the receivers
  int64_t budget_bytes = int64_t{1} << 30;
  RefitPath path = RefitPath::kBroadcast;
  // On trainer rank 0 before bucket i is handed over, with the memory of its full tensors; a test's
  // way in. May be empty.
  std::function<void(int64_t bucket, const at::Tensor& memory)> before_bucket = {};
};

// Neighbouring tensors that are handed over together.
struct RefitBucket {
  size_t first = 0;
  std::vector<int64_t> offsets = {};  // of each tensor in the bucket's memory
  int64_t bytes = 0;
};

// Floating-point tensors in `dtype`, others in their own.
RefitInfo prepare_refit_info(const std::vector<HeldTensor>& tensors, at::ScalarType dtype);
// No bucket has more than `budget_bytes`, unless one tensor alone has more. Throws
// Error(kBadInput): a budget that is not positive.
std::vector<RefitBucket> refit_buckets(const RefitInfo& info, int64_t budget_bytes);

// A trainer's weights as the optimizer has them, in forward order; a tied one once.
std::vector<HeldTensor> weights_of(const Trainer& trainer);

// Every rank of the trainer calls it while every receiver calls receive_refit. Full tensors are on
// rank 0 alone, one bucket of them; that memory is free afterwards, however it ends.
//
//   tensors     the same keys in the same order on every rank
//   trainer     of the trainer's mesh
//   receivers   on rank 0 the refit group, in which it is rank 0; null elsewhere
//   device      where the communicators move tensors
//
// Forward   refit group: broadcast of the info, all_reduce(max) whether all can take it; per bucket
//           a broadcast, or with shared memory two barriers
//           trainer: all_reduce(max) of the same; per tensor the sends of collect_into
// Throws    Error(kBadInput) on every rank: a budget that is not positive. Error(kFailed) on every
//           rank: a receiver that cannot take it
void send_refit(const std::vector<HeldTensor>& tensors, const RefitOptions& options,
                MeshComm& trainer, Communicator* receivers, at::Device device);

// A receiver's part: writes into every piece, each this rank's cut of the full tensor by its own
// layout over `mesh`, of the dtype in which it is sent.
//
// Throws   Error(kBadInput): a key that is not sent or not wanted (with the nearest), another
//          shape or dtype. Error(kRefused): shared memory that this process cannot open.
//          Error(kFailed): another receiver cannot take it
void receive_refit(const std::vector<HeldTensor>& wanted, const Mesh& mesh, int64_t rank,
                   Communicator& from, at::Device device);

}  // namespace shardproof
