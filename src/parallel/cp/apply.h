// Applies context parallelism to a decoder from outside: the attention core becomes a ring.
#pragma once

#include "comm/mesh_comm.h"
#include "model/decoder.h"
#include "parallel/cp/rotation.h"

namespace shardproof {

struct ContextParallelOptions {
  Rotation rotation = Rotation::kSendRecv;
};

// Replaces every attention core by ring attention over the axis cp. The other layers process each
// token independently and stay: the caller gives each rank its tokens with their positions
// (shard_buffers), and the step's context their layout. With cp = 1 nothing changes.
//
// Call it after apply_tensor_parallel and before apply_ulysses. `comm` must outlive the model and
// every backward through it. It makes the cp communicator, but does not communicate.
//
// Source   NeMo-RL dtensor_policy_worker.py, context_parallel around the model
void apply_context_parallel(Decoder& model, MeshComm& comm, const ContextParallelOptions& options);

}  // namespace shardproof
