#include "policy/worker_calls.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace shardproof {

void check_sequence_dims(const Batch& data) {
  for (const BatchTensor& part : kBatchTensors) {
    const at::Tensor& tensor = data.*part.tensor;
    if (!tensor.defined() || tensor.dim() < 2 || tensor.size(1) == data.seq_len()) continue;
    throw_bad_input(fmt::format("{} is [{}], but dim 1 of input_ids, the sequence, is {}",
                                part.name, fmt::join(tensor.sizes(), ", "), data.seq_len()),
                    "give every tensor with a second dim the sequence there");
  }
}

Batch with_masks(Batch data, const LossOptions& loss) {
  if (!data.sample_mask.defined()) {
    throw_bad_input("the data has no sample_mask", "add one: 1 for each sample that counts");
  }
  if (data.token_mask.defined()) return data;
  if (loss.normalization == LossNormalization::kToken) {
    throw_bad_input("a loss over tokens has no token_mask to count them by",
                    "add token_mask [B, S] to the data, or normalise over sequences");
  }
  data.token_mask = at::ones(data.input_ids.sizes(), data.sample_mask.options());
  return data;
}

std::vector<Batch> global_batches(const Batch& data, int64_t size) {
  if (size <= 0) return {data};
  if (data.size() % size != 0) {
    throw_bad_input(
        fmt::format("{} samples do not divide into global batches of {}", data.size(), size),
        "change train_global_batch_size or the data");
  }
  std::vector<Batch> batches;
  for (int64_t first = 0; first < data.size(); first += size) {
    batches.push_back(data.slice(first, size));
  }
  return batches;
}

}  // namespace shardproof
