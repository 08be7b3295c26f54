// A batch that the first rank of a tp group reads and all of its ranks train on.
#pragma once

#include "comm/communicator.h"
#include "model/batch.h"

namespace shardproof {

// Returns the first rank's batch on every rank of `group`, on the CPU, with the tensors that it
// has. Other ranks' `own` is not read and may be empty. The tensors travel on `device`.
//
// Forward   three calls of broadcast_data: which tensors there are, the integers, the numbers
Batch broadcast_batch(const Batch& own, at::Device device, Communicator& group);

}  // namespace shardproof
