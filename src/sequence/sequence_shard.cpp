#include "sequence/sequence_shard.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <numeric>

#include "base/error.h"
#include "collective/mappings.h"

namespace shardproof {
namespace {

at::Tensor index_tensor(const std::vector<int64_t>& indices, at::Device device) {
  return at::tensor(indices, at::TensorOptions().dtype(at::kLong)).to(device);
}

void check_size(const at::Tensor& tensor, int64_t dim, int64_t size, const char* what) {
  SHARDPROOF_ASSERT(tensor.size(dim) == size, fmt::format("dim {} has {} entries, {} has {}", dim,
                                                          tensor.size(dim), what, size));
}

void check_part(const at::Tensor& local, const SequenceLayout& layout, const Communicator& cp,
                int64_t dim) {
  SHARDPROOF_ASSERT(cp.size() == layout.cp_size(), "a layout of as many ranks as the axis");
  check_size(local, dim, layout.local_positions(), "a rank's part");
}

}  // namespace

at::Tensor sequence_shard(const at::Tensor& row, const SequenceLayout& layout, int64_t cp_rank,
                          int64_t dim) {
  check_size(row, dim, layout.num_positions(), "the padded row");
  return row.index_select(dim, index_tensor(layout.indices(cp_rank), row.device()));
}

at::Tensor sequence_unshard(const at::Tensor& gathered, const SequenceLayout& layout, int64_t dim) {
  check_size(gathered, dim, layout.num_positions(), "the padded row");
  return gathered.index_select(dim, index_tensor(layout.inverse_order(), gathered.device()));
}

at::Tensor pad_sequences(const at::Tensor& tokens, const SequenceLayout& layout, int64_t dim,
                         double value) {
  int64_t count = 0;
  for (const SequenceSpan& span : layout.sequences()) count += span.length;
  check_size(tokens, dim, count, "the row of tokens");
  // The token at every position of the padded row; `count`, the padding, where there is none.
  std::vector<int64_t> token_at(static_cast<size_t>(layout.num_positions()), count);
  int64_t token = 0;
  for (const SequenceSpan& span : layout.sequences()) {
    std::iota(token_at.begin() + span.start, token_at.begin() + span.start + span.length, token);
    token += span.length;
  }
  std::vector<int64_t> one(tokens.sizes().begin(), tokens.sizes().end());
  one[static_cast<size_t>(dim < 0 ? dim + tokens.dim() : dim)] = 1;
  const at::Tensor padding = at::full(one, value, tokens.options());
  return at::cat({tokens, padding}, dim).index_select(dim, index_tensor(token_at, tokens.device()));
}

at::Tensor sequence_gather_with_reduce_scatter_backward(const at::Tensor& local,
                                                        const SequenceLayout& layout,
                                                        Communicator& cp, int64_t dim,
                                                        std::string_view label) {
  check_part(local, layout, cp, dim);
  return sequence_unshard(all_gather_with_reduce_scatter_backward(local, cp, dim, label), layout,
                          dim);
}

at::Tensor sequence_gather_with_slice_backward(const at::Tensor& local,
                                               const SequenceLayout& layout, Communicator& cp,
                                               int64_t dim, std::string_view label) {
  check_part(local, layout, cp, dim);
  return sequence_unshard(all_gather_with_slice_backward(local, cp, dim, label), layout, dim);
}

}  // namespace shardproof
