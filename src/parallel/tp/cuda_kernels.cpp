#include "parallel/tp/cuda_kernels.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

namespace shardproof {
namespace {

CudaKernels load_cuda_kernels() {
  std::error_code ignored;
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() /
      "libshardproof_cuda.so";
  if (!std::filesystem::exists(path, ignored)) {
    return {.why_not = "libshardproof_cuda.so was not built (no nvcc at build time)"};
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
