// A checkpoint frees its output's memory until the gradient of the hook's tensor arrives.
#include "random/checkpoint_without_output.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "random/dropout.h"
#include "random/rng_seeds.h"
#include "tests/support/kept_bytes.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests::checkpoint_without_output_test {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Grads {
  at::Tensor out, x, gain, weight, drawn_after;
};

// norm with dropout, then a linear layer that saves its input.
Grads run(bool discards) {
  RngTracker rng;
  seed_streams(rng, 4, {});
  const at::Tensor x = random_tensor({5, 6}, 1).requires_grad_();
  const at::Tensor gain = random_tensor({6}, 2).requires_grad_();
  const at::Tensor weight = random_tensor({6, 7}, 3).requires_grad_();
  const CheckpointBody body = [&](const Tensors& in) -> Tensors {
    return {dropout(at::tanh(in[0]) * gain, 0.3, rng, "norm")};
  };
  CheckpointWithoutOutput norm;
  const at::Tensor y = discards ? norm.run(body, {x}, &rng)[0] : body({x})[0];
  const at::Tensor z = y.matmul(weight);
  if (discards) {
    CHECK(norm.discard_outputs_until(z) == static_cast<int64_t>(y.nbytes()));
    CHECK(y.storage().nbytes() == 0);
    CHECK(y.sizes() == at::IntArrayRef({5, 6}));
  }
  at::gelu(z).backward(random_tensor({5, 7}, 4));
  if (discards) CHECK(y.storage().nbytes() == static_cast<size_t>(30 * 8));
  return {z.detach(), x.grad(), gain.grad(), weight.grad(), rng.uniform({5}, "after")};
}

TEST_CASE("gradients and later draws are as without", "[RN-4]") {
  const Grads plain = run(false), discarding = run(true);
  CHECK(plain.out.equal(discarding.out));
  CHECK(plain.x.equal(discarding.x));
  CHECK(plain.gain.equal(discarding.gain));
  CHECK(plain.weight.equal(discarding.weight));
  CHECK(plain.drawn_after.equal(discarding.drawn_after));
}

TEST_CASE("several outputs, one of them shared with an input: that one keeps its memory",
          "[RN-4]") {
  const at::Tensor x = random_tensor({5, 6}, 1).requires_grad_();
  const at::Tensor doubled = x * 2;
  const at::Tensor held = random_tensor({6}, 9);
  CheckpointWithoutOutput both;
  const Tensors y = both.run(
      [&](const Tensors& in) -> Tensors {
        return {in[0].view({30}), in[0].square(), held.unsqueeze(0)};
      },
      {doubled}, nullptr);
  const at::Tensor z = y[0].square().sum() + y[1].square().sum() + y[2].sum();
  const auto one = static_cast<int64_t>(x.nbytes());
  CHECK(both.discard_outputs_until(z) == one);
  CHECK(doubled.equal(x.detach() * 2));      // the input has its values
  CHECK(held.equal(random_tensor({6}, 9)));  // so has the tensor that the body holds
  z.backward();
  const at::Tensor d = x.detach() * 2;
  CHECK(difference(2 * (2 * d + 4 * d * d * d), x.grad()) == "");
}

TEST_CASE("two outputs that share memory lose it once", "[RN-4]") {
  const at::Tensor x = random_tensor({4, 6}, 1).requires_grad_();
  CheckpointWithoutOutput halves;
  const Tensors y = halves.run(
      [](const Tensors& in) -> Tensors {
        const at::Tensor both = in[0].square();
        return {both.narrow(1, 0, 2), both.narrow(1, 2, 4)};
      },
      {x}, nullptr);
  const at::Tensor z = y[0].square().sum() + y[1].square().sum();
  CHECK(halves.discard_outputs_until(z) == static_cast<int64_t>(x.nbytes()));
  z.backward();
  CHECK(difference(4 * x.detach().pow(3), x.grad()) == "");
}

TEST_CASE("a hook tensor that does not depend on the outputs is refused", "[RN-4]") {
  const at::Tensor x = random_tensor({4}, 1).requires_grad_();
  CheckpointWithoutOutput square;
  const at::Tensor y =
      square.run([](const Tensors& in) -> Tensors { return {in[0].square()}; }, {x}, nullptr)[0];
  for (const at::Tensor& stranger : {x * 3, x}) {
    CHECK_THROWS_AS(square.discard_outputs_until(stranger), Error);
  }
  CHECK(y.equal(x.detach().square()));  // no memory was freed
  const at::Tensor z = y * y;
  CHECK(square.discard_outputs_until(z) > 0);
}

TEST_CASE("grad() through it is refused", "[RN-4]") {
  const at::Tensor x = random_tensor({4}, 1).requires_grad_();
  CheckpointWithoutOutput square;
  const at::Tensor y =
      square.run([](const Tensors& in) -> Tensors { return {in[0].square()}; }, {x}, nullptr)[0];
  const at::Tensor z = (y * y).sum();
  square.discard_outputs_until(z);
  CHECK_THROWS_AS(torch::autograd::grad({z}, {x}), Error);
}

TEST_CASE("an input written to in between is told", "[RN-4]") {
  const at::Tensor x = random_tensor({4}, 1).requires_grad_();
  const at::Tensor half = x * 0.5;
  CheckpointWithoutOutput square;
  const at::Tensor y =
      square.run([](const Tensors& in) -> Tensors { return {in[0].square()}; }, {half}, nullptr)[0];
  const at::Tensor z = (y * y).sum();
  square.discard_outputs_until(z);
  {
    const at::NoGradGuard no_grad;
    half.add_(1);
  }
  CHECK_THROWS_AS(z.backward(), InternalError);
}

TEST_CASE("one inside another: each brings its own output back", "[RN-4][RN-3]") {
  const at::Tensor x = random_tensor({4, 6}, 1).requires_grad_();
  const auto body = [](const Tensors& in) -> Tensors {
    CheckpointWithoutOutput inner;
    const at::Tensor y =
        inner.run([](const Tensors& i) -> Tensors { return {i[0].square()}; }, in, nullptr)[0];
    const at::Tensor z = y * y;
    inner.discard_outputs_until(z);
    return {z};
  };
  checkpoint(body, {x}, nullptr)[0].sum().backward();
  CHECK(difference(4 * x.detach().pow(3), x.grad()) == "");
}

TEST_CASE("it keeps neither what is inside nor its output, in bytes", "[RN-4]") {
  const at::Tensor x = random_tensor({128, 64}, 1).requires_grad_();
  const at::Tensor weight = random_tensor({64, 16}, 3).requires_grad_();
  const auto one = static_cast<int64_t>(x.nbytes());
  const CheckpointBody body = [](const Tensors& in) -> Tensors {
    return {at::gelu(at::tanh(in[0]))};
  };
  const int64_t plain = kept_bytes([&] { return body({x})[0].matmul(weight); });
  const int64_t without_inside =
      kept_bytes([&] { return checkpoint(body, {x}, nullptr)[0].matmul(weight); });
  const int64_t without_output = kept_bytes([&] {
    CheckpointWithoutOutput norm;
    const at::Tensor z = norm.run(body, {x}, nullptr)[0].matmul(weight);
    norm.discard_outputs_until(z);
    return z;
  });
  INFO("plain " << plain << " checkpoint " << without_inside << " without output "
                << without_output);
  CHECK(plain == 2 * one + one / 4);       // tanh's, gelu's and the result
  CHECK(without_inside == one + one / 4);  // gelu's and the result
  CHECK(without_output == one / 4);        // the result
}

}  // namespace
}  // namespace shardproof::tests::checkpoint_without_output_test
