// The loss of an extra head: which tokens count, and over what it is a mean.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <limits>

#include "train/loss.h"

namespace shardproof {
namespace {

TEST_CASE("A head counts the tokens that it predicts, and those alone", "[train][PP-29]") {
  // Two sequences of 5 and 2 tokens; the first token of each is never predicted.
  const at::Tensor mask =
      at::tensor({0., 1., 1., .5, 1., 0., 1., 0., 0., 0.}, at::kDouble).view({2, 5});
  CHECK(at::equal(mask_of_head(mask, 1),
                  at::tensor({0., 0., 1., .5, 1., 0., 0., 0., 0., 0.}, at::kDouble).view({2, 5})));
  const LossCounts counts = counts_of(mask, /*extra_heads=*/4);
  CHECK(counts.tokens == 4.5);
  CHECK(counts.tokens_of_heads == std::vector<double>{2.5, 1.5, 1, 0});
}

TEST_CASE("The loss of a head is a mean over its own tokens, and 0 without any", "[train][PP-29]") {
  const at::Tensor mask = at::tensor({0., 1., 1., 1.}, at::kDouble).view({1, 4});
  const LossCounts counts = counts_of(mask, /*extra_heads=*/3);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  at::Tensor logprobs = at::tensor({nan, nan, -3., -8.}, at::kDouble).view({1, 4}).requires_grad_();
  const at::Tensor loss = head_loss_addend(logprobs, mask, 1, counts);
  CHECK(loss.item<double>() == (3 + 8) / 2.);
  loss.backward();
  CHECK(at::equal(logprobs.grad(), at::tensor({0., 0., -.5, -.5}, at::kDouble).view({1, 4})));
  logprobs = at::full({1, 4}, nan, at::kDouble).requires_grad_();
  const at::Tensor none = head_loss_addend(logprobs, mask, 3, counts);
  CHECK(none.item<double>() == 0);
  none.backward();
  CHECK(at::equal(logprobs.grad(), at::zeros({1, 4}, at::kDouble)));
}

}  // namespace
}  // namespace shardproof
