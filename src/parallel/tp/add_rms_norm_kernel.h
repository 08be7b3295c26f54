// Addition and RMSNorm on a GPU, without LibTorch: what nvcc compiles and what calls it. Part of
// the plugin (cuda_kernels.h).
#pragma once

#include <cstdint>

namespace shardproof {

enum class RowType { kFloat16, kBFloat16, kFloat32, kFloat64 };

struct AddNormRows {
  RowType type;
  const void *addend, *residual;  // [rows, width]
  const void* weight;             // [width]
  void *sum, *normed;             // [rows, width]
  int64_t rows, width;            // at least 1 each
  double eps;
};

// Starts it on `stream`, a cudaStream_t; the launch's cudaError_t.
int launch_add_rms_norm(const AddNormRows& rows, void* stream);

}  // namespace shardproof
