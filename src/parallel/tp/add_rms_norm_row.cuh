// Addition and RMSNorm in one launch: a block of threads per row.
//
//   each thread   sum[i] = addend[i] + residual[i], rounded; adds sum[i]^2, in the wide type
//   the block     adds the threads' squares: within warps by shuffles, over warps in shared memory
//   each thread   normed[i] = sum[i] * factor * weight[i], of the elements that it wrote itself
//
// The wide type is float64 for float64 and float32 for all others, as on the CPU
// (add_rms_norm.cpp). Any width and alignment works: neighboring threads read neighboring elements,
// one by one. The text uses only CUDA's keywords and intrinsics, which a test defines for a CPU.
#pragma once

#include <cstdint>

namespace shardproof {

inline constexpr int kRowWarp = 32;
inline constexpr int kMostRowThreads = 512;

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

__device__ inline float reciprocal_root(float value) { return 1.0f / sqrtf(value); }
__device__ inline double reciprocal_root(double value) { return 1.0 / sqrt(value); }

// Returns the sum over all threads of the block to each. blockDim.x is a multiple of a warp.
template <class Wide>
__device__ Wide sum_over_block(Wide value) {
  __shared__ Wide of_warp[kMostRowThreads / kRowWarp];
  for (int step = kRowWarp / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, step);
  }
  if (threadIdx.x % kRowWarp == 0) of_warp[threadIdx.x / kRowWarp] = value;
  __syncthreads();
  Wide total = 0;
  for (unsigned warp = 0; warp < blockDim.x / kRowWarp; ++warp) total += of_warp[warp];
  __syncthreads();  // the next row writes of_warp again
  return total;
}

// Launch with a multiple of a warp, at most kMostRowThreads, as threads per block.
template <class Scalar>
__global__ void __launch_bounds__(kMostRowThreads)
    add_norm_row(const Scalar* addend, const Scalar* residual, const Scalar* weight, Scalar* sum,
                 Scalar* normed, int64_t rows, int64_t width, double eps) {
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

}  // namespace shardproof
