// Loads CUDA on demand, so that the program also runs without it.
#pragma once

#include <string>

namespace shardproof {

// Loads the CUDA half of LibTorch once; call it before any tensor operation uses CUDA. Throws
// Error(kRefused) when there is no driver or no GPU, or LibTorch was installed without CUDA.
void load_cuda();
// The reason for which load_cuda() would throw; "": it would not.
std::string why_no_cuda();

}  // namespace shardproof
