#include "train/microbatch.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "mesh/layout.h"
#include "parallel/data/replicate.h"

namespace shardproof {
namespace {

Microbatch make_microbatch(const Batch& batch, int64_t first, int64_t count, int64_t padded_len,
                           bool dummy) {
  Microbatch micro;
  micro.batch = batch.slice(first, count);
  const int64_t seq_len = batch.seq_len();
  const int64_t padding = padded_len - seq_len;
  micro.input_ids = at::constant_pad_nd(micro.batch.input_ids, {0, padding}, 0);
  const at::Tensor position = at::arange(seq_len, at::kLong);
  micro.positions = at::arange(padded_len, at::kLong).unsqueeze(0).expand({count, padded_len});
  const at::Tensor real = position.unsqueeze(0) < micro.batch.input_lengths.unsqueeze(1);
  micro.scored = real.logical_and((position > 0).unsqueeze(0));
  const at::Tensor sample = at::arange(first, first + count, at::kLong).unsqueeze(1);
  const at::Tensor index = sample * seq_len + position.unsqueeze(0);
  const at::Tensor none = at::full_like(index, -1);
  micro.result_map = dummy ? none : index;
  const at::Tensor token_map = dummy ? none : at::where(real, index, none);
  micro.token_map = at::constant_pad_nd(token_map, {0, padding}, -1);
  micro.loss_mask = micro.batch.loss_mask();
  if (dummy) micro.loss_mask = at::zeros_like(micro.loss_mask);
  return micro;
}

}  // namespace

std::vector<Microbatch> deal_microbatches(const Batch& batch, int64_t dp_size, int64_t dp_rank,
                                          int64_t micro_batch_size, int64_t seq_multiple,
                                          int64_t samples_together) {
  SHARDPROOF_ASSERT(batch.size() % samples_together == 0 &&
                        (micro_batch_size <= 0 || micro_batch_size % samples_together == 0),
                    "samples that stay together divide the batch and its microbatches");
  const int64_t padded_len = round_up(batch.seq_len(), seq_multiple);
  SampleRange share = samples_of(batch.size() / samples_together, dp_size, dp_rank);
  share.first *= samples_together;
  share.count *= samples_together;
  const int64_t largest_share =
      samples_of(batch.size() / samples_together, dp_size, 0).count * samples_together;
  const int64_t size =
      micro_batch_size > 0 ? micro_batch_size : std::max<int64_t>(1, largest_share);
  const int64_t steps = (largest_share + size - 1) / size;
  std::vector<Microbatch> microbatches;
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t left = share.count - i * size;
    if (left > 0) {
      microbatches.push_back(make_microbatch(batch, share.first + i * size, std::min(size, left),
                                             padded_len, /*dummy=*/false));
    } else {
      microbatches.push_back(
          make_microbatch(batch, 0, samples_together, padded_len, /*dummy=*/true));
    }
  }
  return microbatches;
}

}  // namespace shardproof
