#include "parallel/tp/cuda_kernels_file.h"

#include <filesystem>

namespace shardproof {

std::string cuda_kernels_file() {
  std::error_code ignored;
  const std::filesystem::path path =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path() /
      "libshardproof_cuda.so";
  return std::filesystem::exists(path, ignored) ? path.string() : std::string();
}

}  // namespace shardproof
