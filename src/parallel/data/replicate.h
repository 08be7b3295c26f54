// Replicated data parallelism: equal parameters on every dp rank, gradients averaged after
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

// Deals `batch_size` samples in contiguous blocks that differ by at most one; the first ones are
// the longer ones. A rank may hold none.
SampleRange samples_of(int64_t batch_size, int64_t dp_size, int64_t dp_rank);

// Replaces `grads` (any shapes, one dtype) by their averages over dp, in buckets of at most
// `bucket_bytes`; those of one bucket then share its memory, without overlap.
//
//   forward   all_reduce(avg), one call per bucket, labelled with its first and last name
//   backward  none: these are gradients already
//
// The caller undoes the mean with a loss factor of dp.size() (NeMo-RL dtensor_policy_worker.py,
// train).
void average_gradients(std::vector<at::Tensor>& grads, const std::vector<std::string>& names,
                       Communicator& dp, int64_t bucket_bytes = 16 << 20);

// The same of a model's gradients, one per parameter, averaged over `data`. Those of which tp ranks
// hold different amounts go in buckets of their own. The others' then are equal on every tp rank,
// so that copies over tp stay equal to the last bit: Gloo sums a buffer's chunks in different
// orders.
void average_parameter_gradients(const std::vector<ParameterPtr>& parameters,
                                 std::vector<at::Tensor>& grads, MeshComm& comm,
                                 Communicator& data);

}  // namespace shardproof
