#include "parallel/tp/spread_activation.h"

#include <ATen/ATen.h>

namespace shardproof {

std::vector<int64_t> SpreadActivation::shares(int64_t elements) const {
  std::vector<int64_t> sizes(static_cast<size_t>(tp_.size()), elements / tp_.size());
  for (int64_t i = 0; i < elements % tp_.size(); ++i) ++sizes[static_cast<size_t>(i)];
  return sizes;
}

at::Tensor SpreadActivation::keep(const at::Tensor& full) {
  const std::vector<int64_t> sizes = shares(full.numel());
  const int64_t start = c10::sum_integers(sizes.begin(), sizes.begin() + tp_.rank());
  return full.reshape({-1}).narrow(0, start, sizes[static_cast<size_t>(tp_.rank())]).clone();
}

at::Tensor SpreadActivation::restore(const at::Tensor& kept, at::IntArrayRef shape) {
  const std::vector<int64_t> sizes = shares(c10::multiply_integers(shape));
  return tp_.all_gather(kept, 0, label_ + " kept input", sizes).view(shape);
}

}  // namespace shardproof
