// Addition and RMSNorm in one pass over the rows.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cmath>

#include "parallel/tp/cuda_kernels.h"
#include "parallel/tp/inference_pair.h"
#include "parallel/tp/norm_rows.h"

namespace shardproof {
namespace {

// The first pass over a float64 row, in float64; norm_rows.h has those of the other types.
double add_row_of_doubles(const double* addend, const double* residual, double* sum,
                          int64_t width) {
  constexpr int64_t kApart = 16;  // independent sums, so that the compiler can use vectors
  double lanes[kApart] = {};
  for (int64_t i = 0; i < width; ++i) {
    sum[i] = addend[i] + residual[i];
    lanes[i % kApart] += sum[i] * sum[i];
  }
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

void scale_row_of_doubles(const double* x, const double* weight, double factor, double* out,
                          int64_t width) {
  for (int64_t i = 0; i < width; ++i) out[i] = x[i] * factor * weight[i];
}

// Types: Scalar in tensors, Element of a row in memory, Wide of the sum of squares.
template <class Scalar, class Element, class Wide, class AddRow, class ScaleRow>
void add_norm_rows(const at::Tensor& addend, const at::Tensor& residual, const at::Tensor& weight,
                   double eps, const AddedNorm& out, AddRow add_row, ScaleRow scale_row) {
  const int64_t width = addend.size(-1);
  const int64_t rows = width == 0 ? 0 : addend.numel() / width;
  const auto elements = [](const at::Tensor& tensor) {
    return reinterpret_cast<const Element*>(tensor.const_data_ptr<Scalar>());
  };
  const Element *a = elements(addend), *r = elements(residual), *w = elements(weight);
  auto* sum = reinterpret_cast<Element*>(out.sum.mutable_data_ptr<Scalar>());
  auto* normed = reinterpret_cast<Element*>(out.normed.mutable_data_ptr<Scalar>());
  const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(width, 1));
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t start = row * width;
      const Wide squares = add_row(a + start, r + start, sum + start, width);
      const Wide factor =
          1 / std::sqrt(squares / static_cast<Wide>(width) + static_cast<Wide>(eps));
      scale_row(sum + start, w, factor, normed + start, width);
    }
  });
}

AddedNorm apart(const at::Tensor& addend, const at::Tensor& residual, const at::Tensor& weight,
                double eps) {
  const at::Tensor sum = addend + residual;
  return {.sum = sum, .normed = inference_rms_norm(sum, weight, eps)};
}

// The sum is written over the addend (a contiguous copy if it is not contiguous), or to new memory.
AddedNorm add_norm(const at::Tensor& addend, const at::Tensor& residual, const at::Tensor& weight,
                   double eps, bool over_addend) {
  check_norm_inputs(addend, weight, &residual);
  const bool on_gpu = addend.is_cuda() && cuda_kernels().add_rms_norm != nullptr;
  const bool half = addend.scalar_type() == at::kHalf;
  if (!on_gpu && (!addend.is_cpu() || half)) return apart(addend, residual, weight, eps);
  const at::Tensor a = addend.contiguous(), r = residual.contiguous(), w = weight.contiguous();
  const AddedNorm out{.sum = over_addend ? a : at::empty(a.sizes(), a.options()),
                      .normed = at::empty(a.sizes(), a.options())};
  if (on_gpu) {
    cuda_kernels().add_rms_norm(a, r, w, eps, out.sum, out.normed);
  } else if (a.scalar_type() == at::kDouble) {
    add_norm_rows<double, double, double>(a, r, w, eps, out, add_row_of_doubles,
                                          scale_row_of_doubles);
  } else if (a.scalar_type() == at::kFloat) {
    const NormRows kernels = norm_rows();
    add_norm_rows<float, float, float>(a, r, w, eps, out, kernels.add_float, kernels.scale_float);
  } else {
    const NormRows kernels = norm_rows();
    add_norm_rows<at::BFloat16, uint16_t, float>(a, r, w, eps, out, kernels.add_bfloat16,
                                                 kernels.scale_bfloat16);
  }
  return out;
}

}  // namespace

AddedNorm add_rms_norm(const at::Tensor& addend, const at::Tensor& residual,
                       const at::Tensor& weight, double eps) {
  const at::NoGradGuard no_grad;
  return add_norm(addend, residual, weight, eps, /*over_addend=*/false);
}

AddedNorm add_rms_norm_over_addend(at::Tensor addend, const at::Tensor& residual,
                                   const at::Tensor& weight, double eps) {
  const at::NoGradGuard no_grad;
  return add_norm(addend, residual, weight, eps, /*over_addend=*/true);
}

}  // namespace shardproof
