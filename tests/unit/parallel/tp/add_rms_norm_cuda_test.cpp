// The kernel that adds and norms in one launch, against two steps and against float64. Without a
// GPU or the kernels, the refusal is tested.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "comm/cuda_device.h"
#include "parallel/tp/add_rms_norm.h"
#include "parallel/tp/cuda_kernels.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

constexpr double kEps = 1e-5;

// The reason why the kernel cannot run here; "": it can.
std::string why_no_kernel() {
  if (const std::string why = why_no_cuda(); !why.empty()) return why;
  load_cuda();
  return cuda_kernels().why_not;
}

at::Tensor plain_norm_of(const at::Tensor& x, const at::Tensor& weight) {
  return x / (x.square().mean(-1, true) + kEps).sqrt() * weight;
}

double rounding_of(at::ScalarType dtype) {
  if (dtype == at::kDouble) return 1e-14;
  if (dtype == at::kFloat) return 1e-6;
  return dtype == at::kHalf ? 6e-4 : 5e-3;
}

TEST_CASE("the CUDA kernel gives what the layers apart give, in every type and width", "[TP-7]") {
  if (const std::string why = why_no_kernel(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const at::Device gpu(at::kCUDA);
  for (const int64_t width : {1, 31, 32, 37, 512, 1000, 8192}) {
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf}) {
      INFO(c10::toString(dtype) << " width " << width);
      const at::Tensor a = random_tensor({7, 3, width}, 1).to(dtype);
      const at::Tensor r = random_tensor({3, 7, width}, 2).to(dtype).transpose(0, 1);
      const at::Tensor gain = random_tensor({width}, 3).to(dtype);
      const AddedNorm out = add_rms_norm(a.to(gpu), r.to(gpu), gain.to(gpu), kEps);
      const at::Tensor sum = a + r;
      CHECK(out.sum.cpu().equal(sum));
      const at::Tensor apart = inference_rms_norm(out.sum, gain.to(gpu), kEps);
      const double eps = rounding_of(dtype);
      CHECK(difference(apart.cpu().to(at::kDouble), out.normed.cpu().to(at::kDouble), eps) == "");
      const at::Tensor golden = plain_norm_of(sum.to(at::kDouble), gain.to(at::kDouble));
      CHECK(difference(golden, out.normed.cpu().to(at::kDouble), eps) == "");
    }
  }
}

TEST_CASE("the CUDA kernel takes no rows, and more rows than it starts blocks", "[TP-7]") {
  if (const std::string why = why_no_kernel(); !why.empty()) {
    WARN("skipped: " << why);
    return;
  }
  const at::Device gpu(at::kCUDA);
  const at::Tensor gain = random_tensor({2}, 3).to(gpu);
  CHECK(
      add_rms_norm(at::empty({0, 2}, gain.options()), at::empty({0, 2}, gain.options()), gain, kEps)
          .sum.numel() == 0);
  const int64_t rows = (int64_t{1} << 20) + 5;
  const at::Tensor a = random_tensor({rows, 2}, 1), r = random_tensor({rows, 2}, 2);
  const AddedNorm out = add_rms_norm(a.to(gpu), r.to(gpu), gain, kEps);
  CHECK(difference(plain_norm_of(a + r, gain.cpu()), out.normed.cpu(), 1e-14) == "");
}

}  // namespace
}  // namespace shardproof::tests
