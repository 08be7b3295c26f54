// Loading CUDA on demand, so that everything else runs where there is none.
#pragma once

#include <string>

namespace shardproof {

// Makes CUDA tensors possible in this process: loads the CUDA half of LibTorch, once. Call it
// before any tensor op asks for CUDA. Throws Error(kRefused) with one sentence when there is no
// driver, no GPU, or LibTorch was installed without CUDA.
void load_cuda();
// Why load_cuda() would refuse; "" when it would not.
std::string why_no_cuda();

}  // namespace shardproof
