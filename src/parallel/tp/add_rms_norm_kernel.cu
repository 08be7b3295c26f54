// Addition and RMSNorm in one launch: a block of threads per row.
//
//   each thread   sum[i] = addend[i] + residual[i], rounded; adds sum[i]^2, in the wide type
//   the block     adds the threads' squares: within warps by shuffles, over warps in shared memory
//   each thread   normed[i] = sum[i] * factor * weight[i], of the elements that it wrote itself
//
// Wide type: float64 for float64, float32 for all others, as on the CPU (add_rms_norm.cpp).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "parallel/tp/add_rms_norm_kernel.h"

namespace shardproof {
namespace {

constexpr int kWarp = 32;
constexpr int kMostThreads = 512;
constexpr int64_t kMostBlocks = 1 << 20;  // more rows than that: a block takes several

template <class Scalar>
struct WideOf {
  using Type = float;
};
template <>
struct WideOf<double> {
  using Type = double;
};

template <class Wide, class Scalar>
__device__ Wide widened(Scalar value) {
  return static_cast<Wide>(value);
}
template <class Scalar, class Wide>
__device__ Scalar rounded(Wide value) {
  return static_cast<Scalar>(value);
}

__device__ float reciprocal_root(float value) { return 1.0f / sqrtf(value); }
__device__ double reciprocal_root(double value) { return 1.0 / sqrt(value); }

// The sum over all threads of the block, given to all of them. blockDim.x is a multiple of a warp.
template <class Wide>
__device__ Wide sum_over_block(Wide value) {
  __shared__ Wide of_warp[kMostThreads / kWarp];
  for (int step = kWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, step);
  }
  if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = value;
  __syncthreads();
  Wide total = 0;
  for (unsigned warp = 0; warp < blockDim.x / kWarp; ++warp) total += of_warp[warp];
  __syncthreads();  // the next row writes of_warp again
  return total;
}

template <class Scalar>
__global__ void add_norm_row(const Scalar* addend, const Scalar* residual, const Scalar* weight,
                             Scalar* sum, Scalar* normed, int64_t rows, int64_t width, double eps) {
  using Wide = typename WideOf<Scalar>::Type;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t start = row * width;
    Wide squares = 0;
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      const Scalar value =
          rounded<Scalar>(widened<Wide>(addend[start + i]) + widened<Wide>(residual[start + i]));
      sum[start + i] = value;
      const Wide wide = widened<Wide>(value);
      squares += wide * wide;
    }
    const Wide mean = sum_over_block(squares) / static_cast<Wide>(width);
    const Wide factor = reciprocal_root(mean + static_cast<Wide>(eps));
    for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
      normed[start + i] =
          rounded<Scalar>(widened<Wide>(sum[start + i]) * factor * widened<Wide>(weight[i]));
    }
  }
}

template <class Scalar>
int launch(const AddNormRows& rows, cudaStream_t stream) {
  const int64_t warps = (rows.width + kWarp - 1) / kWarp;
  const auto threads = static_cast<unsigned>(
      warps * kWarp < kMostThreads ? warps * kWarp : static_cast<int64_t>(kMostThreads));
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
