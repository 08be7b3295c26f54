// The kernels of libshardproof_cuda.so, loaded on demand: everything else builds and runs without
// the CUDA toolkit and without a GPU.
//
//   cuda_kernels.cpp          finds and loads the plugin                          (the program)
//   cuda_kernels_plugin.cpp   from tensors to pointers, device and stream         (the plugin, C++)
//   add_rms_norm_kernel.cu    the kernel: no LibTorch                             (the plugin,
//   nvcc)
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shardproof {

// addend + residual into `sum`, its RMSNorm into `normed`, on the current stream of their device.
// All five of one dtype (float16, bfloat16, float32, float64), contiguous on one GPU; addend,
// residual, sum, normed [.., E], weight [E]. `sum` may be `addend` itself: each element is read by
// the thread that then writes it.
using CudaAddRmsNorm = void(const at::Tensor& addend, const at::Tensor& residual,
                            const at::Tensor& weight, double eps, const at::Tensor& sum,
                            const at::Tensor& normed);
inline constexpr const char* kCudaAddRmsNormName = "shardproof_cuda_add_rms_norm";

struct CudaKernels {
  CudaAddRmsNorm* add_rms_norm = nullptr;
  std::string why_not = {};  // one sentence where there is none
};

// Loaded once and never unloaded: kernels may still run when nobody holds them any more. The first
// call must come after load_cuda() (comm/cuda_device.h) has succeeded.
const CudaKernels& cuda_kernels();

}  // namespace shardproof
