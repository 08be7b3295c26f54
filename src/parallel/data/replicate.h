// Replicated data parallelism: equal parameters on every dp rank; gradients are averaged after the
// backward.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "model/slot.h"

namespace shardproof {

// The samples [first, first + count) of a global batch that one dp rank holds.
struct SampleRange {
  int64_t first = 0;
  int64_t count = 0;
};

// Splits `batch_size` samples into contiguous blocks whose sizes differ by at most one, larger ones
// first. A rank may hold none.
SampleRange samples_of(int64_t batch_size, int64_t dp_size, int64_t dp_rank);

// Replaces a model's gradients, one per parameter and of one dtype, by their averages over
// mean_axes(). They are averaged in buckets of at most 16 MiB; those of one bucket then share its
// memory, without overlap. Gradients whose sizes differ among the other ranks of the mesh go into
// separate buckets. The other buckets are then the same on every rank, so that copies over tp stay
// equal to the last bit: Gloo sums a buffer's chunks in different orders.
//
//   forward   all_reduce(avg), one call per bucket, labeled with its first and last name
//   backward  none: these are gradients already
//
// The caller cancels the mean by a loss factor of the number of ranks (NeMo-RL
// dtensor_policy_worker.py, train).
void average_parameter_gradients(const std::vector<ParameterPtr>& parameters,
                                 std::vector<at::Tensor>& grads, MeshComm& comm,
                                 const std::vector<std::string>& token_axes);

}  // namespace shardproof
