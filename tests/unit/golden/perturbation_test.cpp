#include "golden/perturbation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "golden/losses.h"
#include "sim/case/record/golden_record.h"

namespace shardproof::golden {
namespace {

double largest(const at::Tensor& value) { return value.abs().max().item<double>(); }

}  // namespace

TEST_CASE("A member moves each element by at most one rounding of its own dtype", "[golden]") {
  const auto [dtype, eps] = GENERATE(table<at::ScalarType, double>(
      {{at::kFloat, 0x1p-23}, {at::kBFloat16, 0x1p-7}, {at::kHalf, 0x1p-10}}));
  const at::Tensor value = at::arange(-300, 301, at::kDouble).div(97).to(dtype);
  const Perturbation one(1, 7), other(2, 7);
  const at::Tensor moved = one.moved(value, "slot 1");
  CHECK(moved.scalar_type() == dtype);
  const at::Tensor by = (moved.to(at::kDouble) - value.to(at::kDouble)).abs();
  // The sum moves by at most half a gap, and its rounding by half a gap of the larger neighbor.
  CHECK(by.le(value.to(at::kDouble).abs() * eps).all().item<bool>());
  CHECK(by.ne(0).to(at::kDouble).mean().item<double>() > 0.1);
  CHECK(at::equal(moved, one.moved(value, "slot 1")));
  CHECK_FALSE(at::equal(moved, one.moved(value, "slot 2")));
  CHECK_FALSE(at::equal(moved, other.moved(value, "slot 1")));
  CHECK(moved[300].item<double>() == 0);  // 0 stays 0
}

TEST_CASE("Only a gradient's elements within its error are moved, and by no more", "[golden]") {
  const std::string key = sim::record_key(Phase::kStep, 3, "grad.w");
  const Perturbation member(1, 7, {{key, 0.25}});
  const at::Tensor gradient = at::tensor({1.0, -0.5, 0.2, 0.0, -0.1}, at::kDouble);
  const at::Tensor by = member.doubted_gradient(gradient, "w", 3) - gradient;
  CHECK(largest(by.narrow(0, 0, 2)) == 0);
  CHECK(by.narrow(0, 2, 3).ne(0).all().item<bool>());
  CHECK(largest(by) <= 0.25);
  CHECK(largest(member.doubted_gradient(gradient, "w", 4) - gradient) == 0);  // no error known
  int moves = 0;
  for (int64_t index = 1; index <= 16; ++index) {
    const Perturbation one(index, 7, {{key, 0.25}});
    moves += largest(one.doubted_gradient(gradient, "w", 3) - gradient) > 0 ? 1 : 0;
  }
  CHECK(moves == 8);  // the others stay where the small elements all add up
}

TEST_CASE("A token near a clip edge is clipped by some members and not by others", "[golden]") {
  Batch batch;
  batch.input_ids = at::ones({1, 4}, at::kLong);
  batch.input_lengths = at::tensor({4}, at::kLong);
  batch.token_mask = at::ones({1, 4}, at::kDouble);
  batch.sample_mask = at::ones({1}, at::kDouble);
  batch.prev_logprobs = at::zeros({1, 4}, at::kDouble);
  batch.advantages = at::ones({1, 4}, at::kDouble);
  const LossOptions loss{.kind = LossKind::kClippedPolicyGradient, .clip_eps = 0.2, .kl_beta = 0};
  // Ratios: one that does not count, 1, one just below the edge, one far outside of it.
  const at::Tensor ratios = at::tensor({1.0, 1.0, 1.199, 2.0}, at::kDouble).view({1, 4});
  const std::string key = sim::record_key(Phase::kForward, 1, "logprobs");
  int clipped = 0;
  for (int64_t index = 1; index <= 32; ++index) {
    const Perturbation member(index, 7, {{key, 0.01}});
    const at::Tensor logprobs = ratios.log().set_requires_grad(true);
    dense_loss(logprobs, batch, loss, member.doubt(logprobs.detach(), 1)).backward();
    const at::Tensor grad = logprobs.grad()[0];
    CHECK(grad[1].item<double>() == Approx(-1.0 / 3));
    CHECK(grad[3].item<double>() == 0);
    clipped += grad[2].item<double>() == 0 ? 1 : 0;
  }
  CHECK(clipped > 4);
  CHECK(clipped < 28);
}

TEST_CASE("A row's log of its sum moves by its rounding, value and gradient alike", "[golden]") {
  const at::Tensor logits = at::tensor({0.0f, 0.5f, -1.0f, 300.0f, 299.0f, 301.0f})
                                .view({1, 2, 3})
                                .set_requires_grad(true);
  const Perturbation one(1, 7), other(2, 7);
  const at::Tensor moves = one.row_moves(logits, "0 1");
  CHECK(at::equal(moves, one.row_moves(logits, "0 1")));
  CHECK_FALSE(at::equal(moves, other.row_moves(logits, "0 1")));
  double far = 0;
  for (int64_t index = 1; index <= 16; ++index) {
    const at::Tensor by = Perturbation(index, 7).row_moves(logits, "0 1").flatten();
    CHECK(largest(by[0]) <= 0x1p-23);          // lse is 1.1: that of a sum near 1
    CHECK(largest(by[1]) <= 301.5 * 0x1p-24);  // lse is 301.4
    far = std::max(far, largest(by[1]));
  }
  CHECK(far > 0x1p-23);

  // At moves that show: log(p) - m, and p exp(-m) where the gradient has p.
  const at::Tensor shown = at::tensor({0.1f, -0.2f}).view({1, 2, 1});
  const at::Tensor p = logits.detach().softmax(-1);
  const at::Tensor logprobs = dense_log_softmax(logits, shown);
  CHECK(at::allclose(logprobs, p.log() - shown, 0, 1e-5));
  logprobs.select(-1, 2).sum().backward();
  at::Tensor expected = -p * shown.neg().exp();
  expected.select(-1, 2) += 1;
  CHECK(at::allclose(logits.grad(), expected, 0, 1e-5));
}

}  // namespace shardproof::golden
