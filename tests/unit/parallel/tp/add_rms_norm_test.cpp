// Addition and norm in one pass: loops of other processors, strided rows, and refusals. The values
// of each type and width are those of scenarios/tp/fused_norm.yaml.
#include "parallel/tp/add_rms_norm.h"

#include <catch2/catch.hpp>

#include "parallel/tp/norm_rows.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests::add_rms_norm_test {
namespace {

constexpr double kEps = 1e-5;

at::Tensor plain_norm(const at::Tensor& x, const at::Tensor& gain) {
  return x / (x.pow(2).mean(-1, true) + kEps).sqrt() * gain;
}

TEST_CASE("a row's loops for any processor and for this one", "[TP-7]") {
  const int64_t width = 1100;  // more than one stretch of sums, and incomplete lanes
  const at::Tensor a = random_tensor({width}, 1).to(at::kFloat);
  const at::Tensor r = random_tensor({width}, 2).to(at::kFloat);
  for (const NormRows& rows : {norm_rows_of_any_processor(), norm_rows()}) {
    at::Tensor sum = at::empty_like(a), out = at::empty_like(a);
    const float squares = rows.add_float(a.const_data_ptr<float>(), r.const_data_ptr<float>(),
                                         sum.mutable_data_ptr<float>(), width);
    CHECK(sum.equal(a + r));
    CHECK(squares == Approx(sum.to(at::kDouble).square().sum().item<double>()).epsilon(1e-6));
    rows.scale_float(sum.const_data_ptr<float>(), r.const_data_ptr<float>(), 0.5f,
                     out.mutable_data_ptr<float>(), width);
    CHECK(out.equal(sum * 0.5 * r));
  }
}

TEST_CASE("strided rows, and inputs that stay as they were", "[TP-7]") {
  const at::Tensor a = random_tensor({7, 5, 6}, 1).permute({1, 0, 2});
  const at::Tensor r = random_tensor({5, 6, 7}, 2).permute({0, 2, 1});
  const at::Tensor gain = random_tensor({6, 2}, 3).select(1, 1);
  const at::Tensor a_before = a.clone(), r_before = r.clone();
  const AddedNorm out = add_rms_norm(a, r, gain, kEps);
  CHECK(difference(plain_norm(a + r, gain), out.normed) == "");
  CHECK(a.equal(a_before));
  CHECK(r.equal(r_before));
  CHECK(add_rms_norm(a.narrow(0, 0, 0), r.narrow(0, 0, 0), gain, kEps).sum.numel() == 0);
}

TEST_CASE("what does not fit is refused", "[TP-7]") {
  const at::Tensor a = random_tensor({5, 6}, 1), gain = random_tensor({6}, 3);
  CHECK_THROWS_AS(add_rms_norm(a, random_tensor({5, 7}, 2), gain, kEps), Error);
  CHECK_THROWS_AS(add_rms_norm(a, a.to(at::kFloat), gain, kEps), Error);
  CHECK_THROWS_AS(add_rms_norm(a, a, random_tensor({5}, 3), kEps), Error);
  // The norm alone refuses the same inputs.
  CHECK_THROWS_AS(inference_rms_norm(a, random_tensor({5}, 3), kEps), Error);
  CHECK_THROWS_AS(inference_rms_norm(a, gain.to(at::kFloat), kEps), Error);
  for (const auto dtype : {at::kFloat8_e4m3fn, at::kLong}) {
    CHECK_THROWS_AS(add_rms_norm(a.to(dtype), a.to(dtype), gain.to(dtype), kEps), Error);
    CHECK_THROWS_AS(inference_rms_norm(a.to(dtype), gain.to(dtype), kEps), Error);
  }
}

}  // namespace
}  // namespace shardproof::tests::add_rms_norm_test
