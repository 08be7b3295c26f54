// libshardproof_cuda.so: translates tensors to the arguments of the kernels.
#include <ATen/ATen.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "parallel/tp/add_rms_norm_kernel.h"
#include "parallel/tp/cuda_kernels.h"

namespace {

using shardproof::AddNormRows;
using shardproof::RowType;

RowType row_type(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return RowType::kFloat64;
    case at::kFloat:
      return RowType::kFloat32;
    case at::kBFloat16:
      return RowType::kBFloat16;
    default:
      return RowType::kFloat16;
  }
}

void add_rms_norm(const at::Tensor& addend, const at::Tensor& residual, const at::Tensor& weight,
                  double eps, const at::Tensor& sum, const at::Tensor& normed) {
  if (addend.numel() == 0) return;
  const c10::cuda::CUDAGuard device(addend.device());
  const AddNormRows rows{.type = row_type(addend.scalar_type()),
                         .addend = addend.const_data_ptr(),
                         .residual = residual.const_data_ptr(),
                         .weight = weight.const_data_ptr(),
                         .sum = sum.mutable_data_ptr(),
                         .normed = normed.mutable_data_ptr(),
                         .rows = addend.numel() / addend.size(-1),
                         .width = addend.size(-1),
                         .eps = eps};
  const int started = launch_add_rms_norm(rows, c10::cuda::getCurrentCUDAStream().stream());
  C10_CUDA_CHECK(static_cast<cudaError_t>(started));
}

}  // namespace

// Found by name with dlsym; both sides are C++ of the same build.
extern "C" __attribute__((visibility("default"))) void shardproof_cuda_add_rms_norm(
    const at::Tensor& addend, const at::Tensor& residual, const at::Tensor& weight, double eps,
    const at::Tensor& sum, const at::Tensor& normed) {
  add_rms_norm(addend, residual, weight, eps, sum, normed);
}
