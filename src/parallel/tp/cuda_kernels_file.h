// Where the plugin of CUDA kernels (cuda_kernels.h) lies: beside the program.
#pragma once

#include <string>

namespace shardproof {

// "": it was not built.
std::string cuda_kernels_file();

}  // namespace shardproof
