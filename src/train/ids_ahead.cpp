#include "train/ids_ahead.h"

#include <ATen/ATen.h>

namespace shardproof {
namespace {

// [b, s] int64: the place in the row of the next token of the same sequence, -1 where it ends.
at::Tensor next_places(const Microbatch& micro) {
  if (micro.plan) return packed_next(*micro.plan);
  const at::Tensor next = at::arange(1, micro.input_ids.size(1) + 1, at::kLong);
  const at::Tensor real = at::constant_pad_nd(micro.token_map.slice(1, 1), {0, 1}, -1).ge(0);
  return at::where(real, next.expand_as(real), at::full_like(micro.token_map, -1));
}

}  // namespace

at::Tensor next_tokens(const at::Tensor& ids, const at::Tensor& next) {
  return ids.gather(1, next.clamp_min(0)).masked_fill_(next.lt(0), 0);
}

std::vector<at::Tensor> ids_ahead(const Microbatch& micro, int64_t count) {
  std::vector<at::Tensor> all;
  if (count == 0) return all;
  const at::Tensor next = next_places(micro);
  for (int64_t i = 0; i < count; ++i) {
    all.push_back(next_tokens(i == 0 ? micro.input_ids : all.back(), next));
  }
  return all;
}

}  // namespace shardproof
