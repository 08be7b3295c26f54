#include "parallel/cp/buffers.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "base/error.h"
#include "sequence/sequence_shard.h"

namespace shardproof {
namespace {

void check_buffer(const SequenceBuffer& buffer, size_t index, int64_t length) {
  const int64_t dims = buffer.tensor.dim(), dim = buffer.sequence_dim;
  if (dim < -dims || dim >= dims) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("buffer {} has {} dims and no dim {}", index, dims, dim),
                 .fix = "name the dim that runs along the sequence"});
  }
  if (buffer.tensor.size(dim) != length) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = fmt::format("dim {} of buffer {} is {} long, the padded sequence {}", dim,
                                     index, buffer.tensor.size(dim), length),
                 .fix = "pad all buffers of a sequence to its padded length"});
  }
}

}  // namespace

std::vector<at::Tensor> shard_buffers(const std::vector<SequenceBuffer>& buffers,
                                      const SequenceLayout& layout, int64_t cp_rank) {
  for (size_t i = 0; i < buffers.size(); ++i) check_buffer(buffers[i], i, layout.num_positions());
  std::vector<at::Tensor> local;
  for (const SequenceBuffer& buffer : buffers) {
    local.push_back(sequence_shard(buffer.tensor, layout, cp_rank, buffer.sequence_dim));
  }
  return local;
}

at::Tensor local_positions(const SequenceLayout& layout, int64_t cp_rank) {
  return at::tensor(layout.positions(cp_rank), at::TensorOptions().dtype(at::kLong));
}

}  // namespace shardproof
