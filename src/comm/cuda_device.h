// Loads CUDA on demand, so that the program also runs without it.
#pragma once

#include <cstdint>
#include <string>

namespace shardproof {

// Loads the CUDA half of LibTorch and starts CUDA, once; call it before any tensor operation uses
// CUDA. A process that has called it may not fork children that use CUDA. Throws Error(kRefused)
// when there is no driver or no GPU, or LibTorch was installed without CUDA.
void load_cuda();
// The reason for which load_cuda() would throw; "": it would not. A child process tries it once, so
// that this process can still fork ranks that use CUDA.
std::string why_no_cuda();
// The number of GPUs. Call load_cuda() before.
int64_t gpu_count();

}  // namespace shardproof
