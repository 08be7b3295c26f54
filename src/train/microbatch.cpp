#include "train/microbatch.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "mesh/layout.h"
#include "parallel/data/replicate.h"

namespace shardproof {

Microbatch microbatch_of(Batch part, const at::Tensor& samples, bool dummy) {
  Microbatch micro;
  micro.batch = std::move(part);
  const int64_t seq_len = micro.batch.seq_len();
  const at::Tensor position = at::arange(seq_len, at::kLong).unsqueeze(0);
  micro.scored = (position < micro.batch.input_lengths.unsqueeze(1)).logical_and(position > 0);
  const at::Tensor index = samples.unsqueeze(1) * seq_len + position;
  micro.result_map = dummy ? at::full_like(index, -1) : index;
  micro.loss_mask = micro.batch.loss_mask();
  if (dummy) micro.loss_mask = at::zeros_like(micro.loss_mask);
  return micro;
}

Microbatch in_rows(Microbatch micro, int64_t row_length) {
  const int64_t kept = std::min(row_length, micro.batch.seq_len()), padding = row_length - kept;
  micro.input_ids = at::constant_pad_nd(micro.batch.input_ids.narrow(1, 0, kept), {0, padding}, 0);
  micro.positions =
      at::arange(row_length, at::kLong).unsqueeze(0).expand({micro.batch.size(), row_length});
  const at::Tensor real =
      at::arange(kept, at::kLong).unsqueeze(0) < micro.batch.input_lengths.unsqueeze(1);
  const at::Tensor index = micro.result_map.narrow(1, 0, kept);
  micro.token_map =
      at::constant_pad_nd(at::where(real, index, at::full_like(index, -1)), {0, padding}, -1);
  return micro;
}

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
    const bool dummy = left <= 0;
    const int64_t first = dummy ? 0 : share.first + i * size;
    const int64_t count = dummy ? samples_together : std::min(size, left);
    microbatches.push_back(
        in_rows(microbatch_of(batch.slice(first, count), at::arange(first, first + count), dummy),
                padded_len));
  }
  return microbatches;
}

}  // namespace shardproof
