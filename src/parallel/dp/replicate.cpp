#include "parallel/dp/replicate.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"

namespace shardproof {

SampleRange samples_of(int64_t batch_size, int64_t dp_size, int64_t dp_rank) {
  const int64_t base = batch_size / dp_size;
  const int64_t longer = batch_size % dp_size;
  return {.first = dp_rank * base + std::min(dp_rank, longer),
          .count = base + (dp_rank < longer ? 1 : 0)};
}

namespace {

void average_bucket(const std::vector<at::Tensor>& bucket, const std::string& label,
                    Communicator& dp) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& grad : bucket) flat.push_back(grad.reshape(-1));
  const at::Tensor averaged = dp.all_reduce(at::cat(flat), ReduceOp::kAvg, label);
  int64_t offset = 0;
  for (const at::Tensor& grad : bucket) {
    grad.copy_(averaged.narrow(0, offset, grad.numel()).view(grad.sizes()));
    offset += grad.numel();
  }
}

}  // namespace

void average_gradients(const std::vector<at::Tensor>& grads, const std::vector<std::string>& names,
                       Communicator& dp, int64_t bucket_bytes) {
  SHARDPROOF_ASSERT(grads.size() == names.size(), "every gradient has a name");
  if (dp.size() == 1) return;
  const at::NoGradGuard no_grad;
  for (size_t first = 0; first < grads.size();) {
    size_t last = first;
    int64_t bytes = 0;
    while (last < grads.size() &&
           (last == first || bytes + static_cast<int64_t>(grads[last].nbytes()) <= bucket_bytes)) {
      bytes += static_cast<int64_t>(grads[last].nbytes());
      ++last;
    }
    const std::string label = "grad." + names[first] +
                              (last - first > 1 ? " .. grad." + names[last - 1] : std::string());
    average_bucket({grads.begin() + static_cast<int64_t>(first),
                    grads.begin() + static_cast<int64_t>(last)}, label, dp);
    first = last;
  }
}

}  // namespace shardproof
