// The kernel of the addition and RMSNorm (add_rms_norm_row.cuh) for each type, and its launch.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "parallel/tp/add_rms_norm_kernel.h"
#include "parallel/tp/add_rms_norm_row.cuh"

namespace shardproof {
namespace {

constexpr int64_t kMostBlocks = 1 << 20;  // for more rows, a block computes several

template <class Scalar>
int launch(const AddNormRows& rows, cudaStream_t stream) {
  const int64_t warps = (rows.width + kRowWarp - 1) / kRowWarp;
  const auto threads = static_cast<unsigned>(warps * kRowWarp < kMostRowThreads
                                                 ? warps * kRowWarp
                                                 : static_cast<int64_t>(kMostRowThreads));
  const auto blocks = static_cast<unsigned>(rows.rows < kMostBlocks ? rows.rows : kMostBlocks);
  add_norm_row<Scalar><<<blocks, threads, 0, stream>>>(
      static_cast<const Scalar*>(rows.addend), static_cast<const Scalar*>(rows.residual),
      static_cast<const Scalar*>(rows.weight), static_cast<Scalar*>(rows.sum),
      static_cast<Scalar*>(rows.normed), rows.rows, rows.width, rows.eps);
  return cudaGetLastError();
}

}  // namespace

int launch_add_rms_norm(const AddNormRows& rows, void* on_stream) {
  const auto stream = static_cast<cudaStream_t>(on_stream);
  switch (rows.type) {
    case RowType::kFloat16:
      return launch<__half>(rows, stream);
    case RowType::kBFloat16:
      return launch<__nv_bfloat16>(rows, stream);
    case RowType::kFloat32:
      return launch<float>(rows, stream);
    case RowType::kFloat64:
      return launch<double>(rows, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace shardproof
