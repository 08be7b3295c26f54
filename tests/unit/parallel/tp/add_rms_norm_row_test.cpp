// Runs the text of the CUDA kernel on the CPU, with a thread for each thread of a block, and waits
// for shuffles and barriers. This tests the arithmetic, the ends of rows and blocks, and races; the
// kernel runs on a GPU in add_rms_norm_cuda_test.cpp.
#include <ATen/ATen.h>
#include <math.h>

#include <barrier>
#include <catch2/catch.hpp>
#include <cstdint>
#include <thread>
#include <vector>

#include "parallel/tp/add_rms_norm.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests::add_rms_norm_row_test {
namespace {

struct Index {
  unsigned x = 0;
};

// One block: its threads and the values that they exchange.
struct Block {
  explicit Block(unsigned threads) : all(threads), values(threads) {}
  std::barrier<> all;
  std::vector<double> values;
};

thread_local Block* block = nullptr;
thread_local Index threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads() { block->all.arrive_and_wait(); }

// All threads of the block make each shuffle, so one barrier serves all warps.
template <class Value>
Value __shfl_xor_sync(unsigned, Value value, int step) {
  block->values[threadIdx.x] = static_cast<double>(value);
  __syncthreads();
  const auto other = static_cast<Value>(block->values[threadIdx.x ^ static_cast<unsigned>(step)]);
  __syncthreads();
  return other;
}

#define __device__
#define __global__
#define __launch_bounds__(threads)
#define __shared__ static  // blocks run one behind the other
namespace kernel {
#include "parallel/tp/add_rms_norm_row.cuh"
}  // namespace kernel
#undef __device__
#undef __global__
#undef __launch_bounds__
#undef __shared__

constexpr double kRowEps = 1e-5;

struct Launch {
  unsigned blocks, threads;
};

template <class Scalar>
AddedNorm run_kernel(const at::Tensor& addend, const at::Tensor& residual, const at::Tensor& weight,
                     Launch launch) {
  const AddedNorm out{.sum = at::zeros_like(addend), .normed = at::zeros_like(addend)};
  const int64_t width = addend.size(-1), rows = addend.numel() / width;
  for (unsigned index = 0; index < launch.blocks; ++index) {
    Block own(launch.threads);
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < launch.threads; ++thread) {
      threads.emplace_back([&, thread] {
        block = &own;
        threadIdx = {thread}, blockIdx = {index};
        blockDim = {launch.threads}, gridDim = {launch.blocks};
        kernel::shardproof::add_norm_row<Scalar>(
            addend.const_data_ptr<Scalar>(), residual.const_data_ptr<Scalar>(),
            weight.const_data_ptr<Scalar>(), out.sum.mutable_data_ptr<Scalar>(),
            out.normed.mutable_data_ptr<Scalar>(), rows, width, kRowEps);
      });
    }
  }
  return out;
}

template <class Scalar>
void check_kernel(int64_t rows, int64_t width, Launch launch, double eps) {
  const auto dtype = c10::CppTypeToScalarType<Scalar>::value;
  INFO(c10::toString(dtype) << " [" << rows << "," << width << "] " << launch.blocks
                            << " blocks of " << launch.threads);
  const at::Tensor a = random_tensor({rows, width}, 1).to(dtype);
  const at::Tensor r = random_tensor({rows, width}, 2).to(dtype);
  const at::Tensor gain = random_tensor({width}, 3).to(dtype);
  const AddedNorm out = run_kernel<Scalar>(a, r, gain, launch);
  const at::Tensor sum = a + r;
  CHECK(out.sum.equal(sum));
  const at::Tensor wide = sum.to(at::kDouble);
  const at::Tensor golden =
      wide / (wide.square().mean(-1, true) + kRowEps).sqrt() * gain.to(at::kDouble);
  CHECK(difference(golden, out.normed.to(at::kDouble), eps) == "");
  const at::Tensor on_cpu = add_rms_norm(a, r, gain, kRowEps).normed;
  CHECK(difference(on_cpu.to(at::kDouble), out.normed.to(at::kDouble), eps) == "");
}

TEST_CASE("the CUDA kernel's text gives the norm, whatever width, threads, blocks and type",
          "[TP-7]") {
  for (const int64_t width : {1, 31, 32, 33, 64, 100}) {
    for (const unsigned threads : {32u, 64u, 96u}) {
      check_kernel<double>(3, width, {2, threads}, 1e-14);
    }
  }
  check_kernel<double>(1, 513, {1, 512}, 1e-14);  // one element more than the most threads
  check_kernel<double>(5, 40, {5, 64}, 1e-14);    // one block per row
  check_kernel<float>(3, 37, {2, 64}, 1e-6);
  check_kernel<at::BFloat16>(3, 37, {2, 64}, 5e-3);
  check_kernel<at::Half>(3, 37, {2, 64}, 6e-4);
}

}  // namespace
}  // namespace shardproof::tests::add_rms_norm_row_test
