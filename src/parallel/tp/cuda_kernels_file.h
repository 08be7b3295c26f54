// The path of the plugin of CUDA kernels (cuda_kernels.h), which lies beside the program.
#pragma once

#include <string>

namespace shardproof {

// "": the plugin was not built.
std::string cuda_kernels_file();

}  // namespace shardproof
