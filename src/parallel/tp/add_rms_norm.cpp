#include "parallel/tp/add_rms_norm.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>

#include "base/error.h"
#include "parallel/tp/cuda_kernels.h"
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

// `residual` may be null.
void check_norm_inputs(const at::Tensor& x, const at::Tensor& weight, const at::Tensor* residual) {
  const at::ScalarType dtype = x.scalar_type();
  const bool known =
      dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kFloat || dtype == at::kDouble;
  const auto like_x = [&](const at::Tensor& other) {
    return other.scalar_type() == dtype && other.device() == x.device();
  };
  const bool fits = x.dim() > 0 && weight.dim() == 1 && weight.size(0) == x.size(-1) &&
                    like_x(weight) &&
                    (residual == nullptr || (residual->sizes() == x.sizes() && like_x(*residual)));
  if (known && fits) return;
  const auto text = [](const at::Tensor& tensor) {
    return fmt::format("[{}] {} on {}", fmt::join(tensor.sizes(), ", "),
                       c10::toString(tensor.scalar_type()), tensor.device().str());
  };
  throw_bad_input(
      fmt::format("{}{} normed with weight {}", text(x),
                  residual == nullptr ? "" : " + residual " + text(*residual) + ",", text(weight)),
      "give equal shapes on one device, a weight of the last dim's size, and one of "
      "float16, bfloat16, float32 and float64");
}

}  // namespace

at::Tensor inference_rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  check_norm_inputs(x, weight, nullptr);
  const at::ScalarType wide = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor values = x.to(wide);
  const at::Tensor factor = values.square().mean(-1, /*keepdim=*/true).add_(eps).rsqrt_();
  return (values * factor * weight.to(wide)).to(x.scalar_type());
}

AddedNorm add_rms_norm(const at::Tensor& addend, const at::Tensor& residual,
                       const at::Tensor& weight, double eps) {
  const at::NoGradGuard no_grad;
  check_norm_inputs(addend, weight, &residual);
  const bool on_gpu = addend.is_cuda() && cuda_kernels().add_rms_norm != nullptr;
  const bool half = addend.scalar_type() == at::kHalf;
  if (!on_gpu && (!addend.is_cpu() || half)) {
    const at::Tensor sum = addend + residual;
    return {.sum = sum, .normed = inference_rms_norm(sum, weight, eps)};
  }
  const at::Tensor a = addend.contiguous(), r = residual.contiguous(), w = weight.contiguous();
  const AddedNorm out{.sum = at::empty(a.sizes(), a.options()),
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

}  // namespace shardproof
