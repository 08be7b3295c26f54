// Addition and RMSNorm in one pass over the rows.
#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "parallel/tp/cuda_kernels.h"
#include "parallel/tp/inference_pair.h"

namespace shardproof {
namespace {

// Sums of a row are kept apart by column, so that the compiler can use vectors in strict
// arithmetic.
constexpr int64_t kLanes = 16;

// float64 in float64, everything else in float32.
template <class Scalar>
using Wide = std::conditional_t<std::is_same_v<Scalar, double>, double, float>;

template <class Scalar>
Wide<Scalar> add_row(const Scalar* addend, const Scalar* residual, Scalar* sum, int64_t width) {
  Wide<Scalar> lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const Scalar value = static_cast<Scalar>(static_cast<Wide<Scalar>>(addend[i + lane]) +
                                               static_cast<Wide<Scalar>>(residual[i + lane]));
      sum[i + lane] = value;
      const auto wide = static_cast<Wide<Scalar>>(value);
      lanes[lane] += wide * wide;
    }
  }
  for (; i < width; ++i) {
    sum[i] = static_cast<Scalar>(static_cast<Wide<Scalar>>(addend[i]) +
                                 static_cast<Wide<Scalar>>(residual[i]));
    const auto wide = static_cast<Wide<Scalar>>(sum[i]);
    lanes[i % kLanes] += wide * wide;
  }
  Wide<Scalar> total = 0;
  for (const Wide<Scalar> lane : lanes) total += lane;
  return total;
}

template <class Scalar>
void scale_row(const Scalar* sum, const Scalar* weight, Wide<Scalar> factor, Scalar* out,
               int64_t width) {
  for (int64_t i = 0; i < width; ++i) {
    out[i] = static_cast<Scalar>(static_cast<Wide<Scalar>>(sum[i]) * factor *
                                 static_cast<Wide<Scalar>>(weight[i]));
  }
}

template <class Scalar>
void add_norm_rows(const at::Tensor& addend, const at::Tensor& residual, const at::Tensor& weight,
                   double eps, const AddedNorm& out) {
  const int64_t width = addend.size(-1);
  const int64_t rows = width == 0 ? 0 : addend.numel() / width;
  const Scalar* a = addend.const_data_ptr<Scalar>();
  const Scalar* r = residual.const_data_ptr<Scalar>();
  const Scalar* w = weight.const_data_ptr<Scalar>();
  Scalar* sum = out.sum.mutable_data_ptr<Scalar>();
  Scalar* normed = out.normed.mutable_data_ptr<Scalar>();
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(width, 1));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t start = row * width;
      const Wide<Scalar> squares = add_row(a + start, r + start, sum + start, width);
      const Wide<Scalar> mean = squares / static_cast<Wide<Scalar>>(width);
      const Wide<Scalar> factor = 1 / std::sqrt(mean + static_cast<Wide<Scalar>>(eps));
      scale_row(sum + start, w, factor, normed + start, width);
    }
  });
}

AddedNorm apart(const at::Tensor& addend, const at::Tensor& residual, const at::Tensor& weight,
                double eps) {
  const at::Tensor sum = addend + residual;
  return {.sum = sum, .normed = inference_rms_norm(sum, weight, eps)};
}

}  // namespace

AddedNorm add_rms_norm(const at::Tensor& addend, const at::Tensor& residual,
                       const at::Tensor& weight, double eps) {
  const at::NoGradGuard no_grad;
  check_norm_inputs(addend, weight, &residual);
  const bool on_gpu = addend.is_cuda() && cuda_kernels().add_rms_norm != nullptr;
  if (!addend.is_cpu() && !on_gpu) return apart(addend, residual, weight, eps);
  const AddedNorm out{.sum = at::empty(addend.sizes(), addend.options()),
                      .normed = at::empty(addend.sizes(), addend.options())};
  const at::Tensor a = addend.contiguous(), r = residual.contiguous(), w = weight.contiguous();
  if (on_gpu) {
    cuda_kernels().add_rms_norm(a, r, w, eps, out.sum, out.normed);
    return out;
  }
  switch (addend.scalar_type()) {
    case at::kDouble:
      add_norm_rows<double>(a, r, w, eps, out);
      break;
    case at::kFloat:
      add_norm_rows<float>(a, r, w, eps, out);
      break;
    case at::kBFloat16:
      add_norm_rows<at::BFloat16>(a, r, w, eps, out);
      break;
    default:
      return apart(addend, residual, weight, eps);
  }
  return out;
}

}  // namespace shardproof
