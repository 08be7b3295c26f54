// Addition and RMSNorm on a GPU: the interface, without LibTorch, of the part that nvcc compiles.
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

// Launches the kernel on `stream`, a cudaStream_t. Returns the launch's cudaError_t.
int launch_add_rms_norm(const AddNormRows& rows, void* stream);

}  // namespace shardproof
