// Transfers the weights of a sharded trainer to inference ranks outside of it, which cut them in
// another way.
//
//   trainer dp 2 x tp 2     0 1 2 3        pieces of a tensor go to rank 0, in the receiver's dtype
//                           |
//   refit group             0 - 4 5 6      full tensors, as many at a time as the budget allows
//   inference tp 3              4 5 6      each keeps the cut of its own layout
//
// Source: NeMo-RL dtensor_policy_worker.py, prepare_refit_info, broadcast_weights_for_collective,
// prepare_weights_for_ipc and get_weights_ipc_handles. There every trainer rank gathers every full
// tensor, and integer buffers are cast to the training dtype. Here only rank 0 gathers, and integer
// buffers keep their dtype.
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

// A receiver must know this about each tensor before the first one arrives.
struct RefitTensor {
  std::string key;  // Hugging Face name
  std::vector<int64_t> shape;
  at::ScalarType dtype;
  int64_t bytes() const;
  bool operator==(const RefitTensor&) const = default;
};
using RefitInfo = std::vector<RefitTensor>;

enum class RefitPath {
  kBroadcast,  // broadcasts each bucket over the refit group
  // The host's: trainer rank 0 and all receivers are on one machine, and no collective moves
  // weights. GPUs go through the host too, without CUDA's IPC handles.
  kSharedMemory
};

struct RefitOptions {
  at::ScalarType dtype = at::kBFloat16;  // of floating-point tensors at the receivers
  int64_t budget_bytes = int64_t{1} << 30;
  RefitPath path = RefitPath::kBroadcast;
  // A hook for tests. Called on trainer rank 0 before bucket i is handed over, with the memory of
  // its full tensors. May be empty.
  std::function<void(int64_t bucket, const at::Tensor& memory)> before_bucket = {};
};

// Neighboring tensors that are transferred together.
struct RefitBucket {
  size_t first = 0;
  std::vector<int64_t> offsets = {};  // of each tensor in the bucket's memory
  int64_t bytes = 0;
};

// Floating-point tensors get `dtype`; others keep their own.
RefitInfo prepare_refit_info(const std::vector<HeldTensor>& tensors, at::ScalarType dtype);
// No bucket has more than `budget_bytes`, unless a single tensor has more. Throws Error(kBadInput)
// for a budget that is not positive.
std::vector<RefitBucket> refit_buckets(const RefitInfo& info, int64_t budget_bytes);

// A trainer's master weights in forward order; tied ones once.
std::vector<HeldTensor> weights_of(const Trainer& trainer);

// Sends the weights. Every rank of the trainer must call it while every receiver calls
// receive_refit. Only rank 0 holds full tensors, one bucket at a time, and frees that memory at the
// end, even after an exception.
//
//   tensors     the same keys in the same order on every rank
//   trainer     communicators of the trainer's mesh
//   receivers   on rank 0 the refit group, in which it is rank 0; null elsewhere
//   device      where the communicators move tensors
//
// Forward   refit group: broadcast of the info, all_reduce(max) of whether a receiver refuses; per
//           bucket a broadcast, or with shared memory two barriers
//           trainer: all_reduce(max) of the same; per tensor the sends of collect_into
// Throws    Error(kBadInput) on every rank: a budget that is not positive. Error(kFailed) on every
//           rank: a receiver that cannot take the weights
void send_refit(const std::vector<HeldTensor>& tensors, const RefitOptions& options,
                MeshComm& trainer, Communicator* receivers, at::Device device);

// A receiver's part: writes into every piece, which is this rank's cut of the full tensor by its
// own layout over `mesh`, in the dtype in which it is sent.
//
// Throws   Error(kBadInput): a key that is not sent or not wanted (with the nearest), another
//          shape or dtype. Error(kRefused): shared memory that this process cannot open.
//          Error(kFailed): another receiver cannot take the weights
void receive_refit(const std::vector<HeldTensor>& wanted, const Mesh& mesh, int64_t rank,
                   Communicator& from, at::Device device);

}  // namespace shardproof
