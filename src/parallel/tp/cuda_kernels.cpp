#include "parallel/tp/cuda_kernels.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "parallel/tp/cuda_kernels_file.h"

namespace shardproof {
namespace {

CudaKernels load_cuda_kernels() {
  const std::string path = cuda_kernels_file();
  if (path.empty()) {
    return {.why_not =
                "libshardproof_cuda.so is not built; `./shardproof build` makes it where nvcc is"};
  }
  void* library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* entry = library != nullptr ? ::dlsym(library, kCudaAddRmsNormName) : nullptr;
  if (entry != nullptr) return {.add_rms_norm = reinterpret_cast<CudaAddRmsNorm*>(entry)};
  const char* why = ::dlerror();
  return {.why_not = fmt::format("the CUDA kernels cannot be loaded: {}", why ? why : "unknown")};
}

}  // namespace

const CudaKernels& cuda_kernels() {
  static const CudaKernels kernels = load_cuda_kernels();
  return kernels;
}

}  // namespace shardproof
