#include "sequence/sequence_shard.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

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

// The positions of the tokens in the padded row, and the token at every position of the padded row
// (the number of tokens where there is none).
struct Places {
  std::vector<int64_t> of_tokens;
  std::vector<int64_t> in_row;
};

Places places_of(const SequenceLayout& layout) {
  Places places;
  for (const SequenceSpan& span : layout.sequences()) {
    for (int64_t i = 0; i < span.length; ++i) places.of_tokens.push_back(span.start + i);
  }
  const auto count = static_cast<int64_t>(places.of_tokens.size());
  places.in_row.assign(static_cast<size_t>(layout.num_positions()), count);
  for (int64_t i = 0; i < count; ++i) {
    places.in_row[static_cast<size_t>(places.of_tokens[static_cast<size_t>(i)])] = i;
  }
  return places;
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
  const Places places = places_of(layout);
  check_size(tokens, dim, static_cast<int64_t>(places.of_tokens.size()), "the row of tokens");
  std::vector<int64_t> one(tokens.sizes().begin(), tokens.sizes().end());
  one[static_cast<size_t>(dim < 0 ? dim + tokens.dim() : dim)] = 1;
  const at::Tensor padding = at::full(one, value, tokens.options());
  return at::cat({tokens, padding}, dim)
      .index_select(dim, index_tensor(places.in_row, tokens.device()));
}

at::Tensor sequence_gather_with_reduce_scatter_backward(const at::Tensor& local,
                                                        const SequenceLayout& layout,
                                                        Communicator& cp, int64_t dim,
                                                        std::string_view label) {
  SHARDPROOF_ASSERT(cp.size() == layout.cp_size(), "a layout of as many ranks as the axis");
  check_size(local, dim, layout.local_positions(), "a rank's part");
  return sequence_unshard(all_gather_with_reduce_scatter_backward(local, cp, dim, label), layout,
                          dim);
}

at::Tensor sequence_gather_with_slice_backward(const at::Tensor& local,
                                               const SequenceLayout& layout, Communicator& cp,
                                               int64_t dim, std::string_view label) {
  SHARDPROOF_ASSERT(cp.size() == layout.cp_size(), "a layout of as many ranks as the axis");
  check_size(local, dim, layout.local_positions(), "a rank's part");
  return sequence_unshard(all_gather_with_slice_backward(local, cp, dim, label), layout, dim);
}

}  // namespace shardproof
