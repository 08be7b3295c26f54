#include "parallel/tp/broadcast_batch.h"

#include <ATen/ATen.h>

#include "parallel/tp/broadcast_data.h"

namespace shardproof {
namespace {

constexpr const char* kPresent = "present";

bool is_integers(const BatchTensor& part) {
  return part.tensor == &Batch::input_ids || part.tensor == &Batch::input_lengths;
}

// [number of kBatchTensors]: 1 where the batch has the tensor.
at::Tensor present_of(const Batch& batch) {
  std::vector<int64_t> present;
  for (const BatchTensor& part : kBatchTensors) present.push_back((batch.*part.tensor).defined());
  return at::tensor(present, at::kLong);
}

}  // namespace

Batch broadcast_batch(const Batch& own, at::Device device, Communicator& group) {
  std::map<std::string, at::Tensor> data = {{kPresent, present_of(own)}};
  for (const BatchTensor& part : kBatchTensors) data[part.name] = own.*part.tensor;
  const at::Tensor present =
      broadcast_data({kPresent}, data, at::kLong, device, group).at(kPresent).cpu();
  Batch batch;
  for (const at::ScalarType dtype : {at::kLong, at::kDouble}) {
    std::vector<std::string> keys;
    for (size_t i = 0; i < std::size(kBatchTensors); ++i) {
      const BatchTensor& part = kBatchTensors[i];
      const bool fits = is_integers(part) == (dtype == at::kLong);
      if (fits && present[static_cast<int64_t>(i)].item<int64_t>() != 0) keys.push_back(part.name);
    }
    const auto got = broadcast_data(keys, data, dtype, device, group);
    for (const BatchTensor& part : kBatchTensors) {
      if (const auto found = got.find(part.name); found != got.end()) {
        batch.*part.tensor = found->second.cpu();
      }
    }
  }
  return batch;
}

}  // namespace shardproof
