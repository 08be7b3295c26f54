#include "logprob/row_kernels.h"

#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <vector>

#include "base/processor.h"
#include "logprob/vocab_parallel_logprob.h"
#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<RowKernels> all_kernels() {
  std::vector<RowKernels> kernels = {row_kernels_of_any_processor()};
  if (has_avx2_and_fma()) kernels.push_back(row_kernels_of_avx2());
  if (has_avx512()) kernels.push_back(row_kernels_of_avx512());
  return kernels;
}

float exponential(const RowKernels& kernels, float x, float max = 0, float factor = 1) {
  float out = -1;
  kernels.exp_float(&x, 1, {.max = max, .factor = factor}, &out);
  return out;
}

// Lengths around one vector, around the loops' steps, and around their stretch of 1024.
const std::vector<int64_t> kLengths = {0,  1,  7,  8,  9,    15,   16,   17,   31,  32,
                                       33, 63, 64, 65, 1000, 1023, 1024, 1025, 4099};

const float* floats(const at::Tensor& tensor) { return tensor.const_data_ptr<float>(); }
const uint16_t* bits(const at::Tensor& tensor) {
  return reinterpret_cast<const uint16_t*>(tensor.const_data_ptr<at::BFloat16>());
}

}  // namespace

TEST_CASE("exp is within 2 units in the last place from -87 to 0, and 0 below", "[LP-1]") {
  for (const RowKernels& kernels : all_kernels()) {
    double worst = 0;
    for (float x = -86.99f; x <= 0; x += 0.0007f) {
      const double golden = std::exp(static_cast<double>(x));
      const double unit = std::ldexp(1.0, std::ilogb(golden) - 23);
      worst = std::max(worst, std::abs(exponential(kernels, x) - golden) / unit);
    }
    CHECK(worst <= 2);
    for (const float x : {-87.5f, -104.0f, -1e30f, -kInfinity}) CHECK(exponential(kernels, x) == 0);
    CHECK(exponential(kernels, 0) == 1);
  }
}

TEST_CASE("a NaN stays one, and an infinite logit makes one", "[LP-1]") {
  for (const RowKernels& kernels : all_kernels()) {
    CHECK(std::isnan(exponential(kernels, kNan)));
    CHECK(std::isnan(exponential(kernels, kInfinity, kInfinity)));
    const std::vector<float> row = {1, kNan, 2, 0, 0, 0, 0, 0, 0, 3};
    CHECK(std::isnan(kernels.sum_float(row.data(), 10, 1).sum));
    const std::vector<float> excluded(11, -kInfinity);
    const RowSum nothing = kernels.sum_float(excluded.data(), 11, 1);
    CHECK(nothing.max == -kInfinity);
    CHECK(nothing.sum == 0);
  }
}

TEST_CASE("the largest and the sum of rows of any length, both types, at any scale", "[LP-1]") {
  const float scale = GENERATE(1.0f, 0.4f, 3.0f);
  for (const int64_t columns : kLengths) {
    const at::Tensor wide = random_tensor({columns}, 3) * 5;
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor row = wide.to(dtype), golden = row.to(at::kDouble);
      for (const RowKernels& kernels : all_kernels()) {
        INFO(columns << " " << c10::toString(dtype) << " scale " << scale);
        const RowSum found = dtype == at::kFloat ? kernels.sum_float(floats(row), columns, scale)
                                                 : kernels.sum_bfloat16(bits(row), columns, scale);
        if (columns == 0) {
          CHECK(found.max == -kInfinity);
          CHECK(found.sum == 0);
          continue;
        }
        const at::Tensor max = golden.max();
        CHECK(found.max == static_cast<float>(max.item<double>()));
        const at::Tensor scaled = (golden - max) * static_cast<double>(scale);
        CHECK(found.sum == Approx(scaled.exp().sum().item<double>()).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("a sum whose larger logits come later, behind columns that are excluded", "[LP-1]") {
  constexpr int64_t kColumns = 5000;
  at::Tensor wide = random_tensor({kColumns}, 3) + at::arange(kColumns).div(1024, "floor") * 30;
  wide.narrow(0, 0, 1100).fill_(-kInfinity);
  wide.narrow(0, 2040, 1100).fill_(-kInfinity);
  for (const float scale : {1.0f, 0.02f, 1e-6f, 1e29f}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor row = wide.to(dtype), golden = row.to(at::kDouble);
      for (const RowKernels& kernels : all_kernels()) {
        INFO(c10::toString(dtype) << " scale " << scale);
        const RowSum found = dtype == at::kFloat ? kernels.sum_float(floats(row), kColumns, scale)
                                                 : kernels.sum_bfloat16(bits(row), kColumns, scale);
        const at::Tensor max = golden.max();
        CHECK(found.max == static_cast<float>(max.item<double>()));
        const at::Tensor scaled = (golden - max) * static_cast<double>(scale);
        CHECK(found.sum == Approx(scaled.exp().sum().item<double>()).epsilon(1e-6));
      }
    }
  }
}

TEST_CASE("scaled exponentials are rounded once, to float32 and to bfloat16", "[LP-2]") {
  for (const int64_t columns : kLengths) {
    const at::Tensor row = (random_tensor({columns}, 4) * 5).to(at::kBFloat16);
    const at::Tensor golden = ((row.to(at::kDouble) - 2) * 0.75).exp() * -0.3;
    const ExpTerms terms{.max = 2, .scale = 0.75f, .factor = -0.3f};
    for (const RowKernels& kernels : all_kernels()) {
      INFO(columns);
      // One element follows the row and must not change.
      const at::Tensor wide = at::full({columns + 1}, 7, at::kFloat);
      const at::Tensor narrow = at::full({columns + 1}, 7, at::kBFloat16);
      kernels.exp_bfloat16_to_float(bits(row), columns, terms, wide.data_ptr<float>());
      kernels.exp_bfloat16(bits(row), columns, terms,
                           reinterpret_cast<uint16_t*>(narrow.data_ptr<at::BFloat16>()));
      CHECK(at::allclose(wide.narrow(0, 0, columns).to(at::kDouble), golden, 1e-6, 1e-30));
      CHECK(at::equal(narrow, wide.to(at::kBFloat16)));
      CHECK(wide[columns].item<float>() == 7);
    }
  }
}

namespace {

struct Rounded {
  at::Tensor logprobs, grad;
};

// Rows of 29 columns over tp ranks. The gradient drops the last two rows, of which one is NaN. In
// memory, columns are contiguous and rows are not.
Rounded rounded_logprobs(int64_t tp, at::ScalarType dtype, const at::Tensor& logits,
                         const at::Tensor& target, const at::Tensor& grad, double temperature) {
  const auto ranks =
      on_every_rank(Mesh::training({.tp = tp}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
        const at::Tensor part = vocab_part(logits, tp, rank).to(dtype);
        const at::Tensor leaf =
            at::constant_pad_nd(part, {0, 3}, 0).narrow(1, 0, part.size(1)).requires_grad_();
        const at::Tensor out = vocab_parallel_logprob(leaf, target, comm.along("tp"), 29,
                                                      {.temperature = temperature});
        out.backward(grad.to(out.scalar_type()));
        return {{"logprobs", out.detach()}, {"grad", leaf.grad()}};
      });
  std::vector<at::Tensor> grads;
  for (const NamedResults& rank : ranks) grads.push_back(rank.at("grad"));
  return {.logprobs = ranks[0].at("logprobs"), .grad = at::cat(grads, -1).narrow(-1, 0, 29)};
}

}  // namespace

TEST_CASE("logprobs at temperatures below, at and above those of the row kernels", "[LP-1][LP-9]") {
  const double temperature = GENERATE(1e-39, 1e-31, 1e-30, 1e-29, 1.0, 1e29, 1e30, 1e31, 1e39);
  INFO(temperature);
  const at::Tensor logits = (random_tensor({6, 29}, 1) * 9).to(at::kBFloat16).to(at::kDouble);
  const at::Tensor target = spread_ids({6}, 29);
  const at::Tensor golden = (logits / temperature).log_softmax(-1).gather(-1, target.unsqueeze(-1));
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor found =
        rounded_logprobs(2, dtype, logits, target, at::ones({6}), temperature).logprobs;
    CHECK(at::allclose(found, golden.squeeze(-1).to(at::kFloat), 1e-5, 0));
  }
}

TEST_CASE("logprobs of lower precisions are within 1e-5 of float64 on the same logits",
          "[LP-1][LP-2][LP-9]") {
  const double temperature = GENERATE(1.0, 0.6, 2.5);
  at::Tensor logits = (random_tensor({6, 29}, 1) * 9).to(at::kBFloat16).to(at::kDouble);
  logits.select(0, 1).narrow(0, 3, 20).fill_(-std::numeric_limits<double>::infinity());
  logits.select(0, 5).fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor target = at::tensor({28, 2, 0, 14, 9, 3}, at::kLong);
  const at::Tensor grad = at::tensor({0.5, -1.5, 2.0, 0.25, 0.0, 0.0}, at::kDouble);
  const at::Tensor golden_leaf = logits.narrow(0, 0, 5).clone().requires_grad_();
  const at::Tensor golden = at::log_softmax(golden_leaf / temperature, -1)
                                .gather(-1, target.narrow(0, 0, 5).unsqueeze(-1))
                                .squeeze(-1);
  golden.backward(grad.narrow(0, 0, 5));
  for (const int64_t tp : {1, 2, 3}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      INFO(tp << " " << c10::toString(dtype) << " temperature " << temperature);
      const Rounded found = rounded_logprobs(tp, dtype, logits, target, grad, temperature);
      CHECK(found.logprobs.scalar_type() == at::kFloat);
      const at::Tensor error = (found.logprobs.narrow(0, 0, 5) - golden).abs().max();
      CHECK(error.item<double>() <= 1e-5);
      CHECK(found.logprobs[5].isnan().item<bool>());
      CHECK(found.grad.scalar_type() == dtype);
      const double rounding = dtype == at::kFloat ? 1e-6 : std::ldexp(1.0, -8);
      CHECK(at::allclose(found.grad.narrow(0, 0, 4).to(at::kDouble),
                         golden_leaf.grad().narrow(0, 0, 4), rounding, 1e-7));
      CHECK(found.grad.narrow(0, 4, 2).eq(0).all().item<bool>());
    }
  }
}

TEST_CASE("a temperature costs logits far from 0 none of their digits", "[LP-9]") {
  const at::Tensor far = (random_tensor({4, 29}, 1) * 3).to(at::kFloat) + 4096;
  const at::Tensor target = at::tensor({28, 2, 0, 14}, at::kLong);
  const at::Tensor golden =
      at::log_softmax(far.to(at::kDouble) / 0.3, -1).gather(-1, target.unsqueeze(-1)).squeeze(-1);
  const Rounded found =
      rounded_logprobs(2, at::kFloat, far.to(at::kDouble), target, at::ones({4}, at::kDouble), 0.3);
  CHECK((found.logprobs - golden).abs().max().item<double>() <= 1e-5);
}

}  // namespace shardproof::tests
