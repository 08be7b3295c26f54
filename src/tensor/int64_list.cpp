#include "tensor/int64_list.h"

#include <ATen/ATen.h>

namespace shardproof {

std::vector<int64_t> int64_list(const at::Tensor& tensor) {
  const at::Tensor here = tensor.detach().to(at::kCPU, at::kLong).contiguous();
  const auto* numbers = here.const_data_ptr<int64_t>();
  return {numbers, numbers + here.numel()};
}

}  // namespace shardproof
