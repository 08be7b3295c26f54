// The kernels of libshardproof_cuda.so, loaded on demand: all other code builds and runs without
// the CUDA toolkit and without a GPU.
//
//   cuda_kernels.cpp          finds and loads the plugin                          (the program)
//   cuda_kernels_plugin.cpp   from tensors to pointers, device and stream         (the plugin, C++)
//   add_rms_norm_kernel.cu    the kernel, without LibTorch                  (the plugin, from nvcc)
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace shardproof {

// Writes addend + residual to `sum` and its RMSNorm to `normed`, on the current stream. All tensors
// have one dtype (float16, bfloat16, float32, float64) and are contiguous on one GPU; addend,
// residual, sum, normed [.., E], weight [E]. `sum` may be `addend`: each thread reads an element
// before it writes it.
using CudaAddRmsNorm = void(const at::Tensor& addend, const at::Tensor& residual,
                            const at::Tensor& weight, double eps, const at::Tensor& sum,
                            const at::Tensor& normed);
inline constexpr const char* kCudaAddRmsNormName = "shardproof_cuda_add_rms_norm";

struct CudaKernels {
  CudaAddRmsNorm* add_rms_norm = nullptr;
  std::string why_not = {};  // the reason, in a sentence, when a kernel is null
};

// Loads the plugin once and never unloads it, because kernels may still run. Call load_cuda()
// (comm/cuda_device.h) before the first call.
const CudaKernels& cuda_kernels();

}  // namespace shardproof
