// A checkpoint changes no values, gradients or random numbers, and saves memory.
#include "random/checkpoint.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <catch2/catch.hpp>

#include "random/region_dropout.h"
#include "random/rng_seeds.h"
#include "tests/support/kept_bytes.h"
#include "tests/support/rank_results.h"
#include "tests/support/said_by.h"

namespace shardproof::tests::checkpoint_test {
namespace {

using Tensors = std::vector<at::Tensor>;

struct Inputs {
  at::Tensor x, other, weight;
};

Inputs fresh() {
  return {random_tensor({4, 6}, 1).requires_grad_(), random_tensor({4, 8}, 2).requires_grad_(),
          random_tensor({6, 8}, 3).requires_grad_()};
}

// Draws from two streams and uses one input twice.
CheckpointBody body_of(const Inputs& in, RngTracker& rng) {
  return [weight = in.weight, &rng](const Tensors& inputs) -> Tensors {
    const at::Tensor inner = at::gelu(inputs[0].matmul(weight));
    const at::Tensor parts = region_dropout(inner, 0.4, HeldOverTp::kParts, rng, "parts");
    const at::Tensor sum = parts * inputs[1] + inputs[1];
    return {region_dropout(sum, 0.3, HeldOverTp::kAlike, rng, "alike"), parts.square()};
  };
}

struct Run {
  Tensors outputs;
  at::Tensor drawn_after;  // the streams' next numbers
  Inputs in;
};

Run run(bool checkpointed) {
  RngTracker rng;
  seed_streams(rng, 8, {});
  rng.uniform({3}, "before");
  Run out;
  out.in = fresh();
  const CheckpointBody body = body_of(out.in, rng);
  const Tensors inputs = {out.in.x, out.in.other};
  out.outputs = checkpointed ? checkpoint(body, inputs, &rng) : body(inputs);
  rng.uniform({5}, "between");
  const Tensors grads = {random_tensor({4, 8}, 5), random_tensor({4, 8}, 6)};
  torch::autograd::backward(out.outputs, grads);
  out.drawn_after = rng.uniform({5}, "after");
  return out;
}

TEST_CASE("values, gradients and later draws are as without a checkpoint", "[RN-3]") {
  const Run plain = run(false), checkpointed = run(true);
  for (size_t i = 0; i < plain.outputs.size(); ++i) {
    CHECK(plain.outputs[i].equal(checkpointed.outputs[i]));
  }
  CHECK(plain.in.x.grad().equal(checkpointed.in.x.grad()));
  CHECK(plain.in.other.grad().equal(checkpointed.in.other.grad()));
  CHECK(plain.in.weight.grad().equal(checkpointed.in.weight.grad()));
  CHECK(plain.drawn_after.equal(checkpointed.drawn_after));
}

TEST_CASE("a checkpoint inside a fork is recomputed in that fork", "[RN-3]") {
  DrawLog log;
  RngTracker rng(&log);
  seed_streams(rng, 8, {});
  const at::Tensor x = random_tensor({4, 6}, 1).requires_grad_();
  at::Tensor y;
  {
    const auto region = rng.fork();
    y = checkpoint(
        [&rng](const Tensors& in) -> Tensors { return {dropout(in[0].square(), 0.5, rng, "x")}; },
        {x}, &rng)[0];
  }
  y.sum().backward();
  CHECK(log.tensor("x")[0][0][kDrawStream].item<int64_t>() == stream_id(kModelParallelRng));
  CHECK(log.tensor("x").equal(log.tensor("x", Phase::kRecompute)));
  CHECK(x.grad().ne(0).equal(y.detach().ne(0)));
  CHECK(rng.warnings().empty());
}

TEST_CASE("a body that throws when recomputed leaves the streams as they were", "[RN-3]") {
  RngTracker rng, untouched;
  seed_streams(rng, 8, {});
  seed_streams(untouched, 8, {});
  bool throws = false;
  const at::Tensor x = random_tensor({4}, 1).requires_grad_();
  const at::Tensor y = checkpoint(
      [&](const Tensors& in) -> Tensors {
        const at::Tensor out = dropout(in[0], 0.5, rng, "x");
        if (throws) throw std::runtime_error("again");
        return {out};
      },
      {x}, &rng)[0];
  throws = true;
  CHECK_THROWS(y.sum().backward());
  untouched.uniform({4}, "x");
  CHECK(rng.uniform({9}, "after").equal(untouched.uniform({9}, "after")));
  CHECK(rng.current_stream() == kDataParallelRng);
}

TEST_CASE("grad() through a checkpoint is refused, backward() is right", "[RN-3]") {
  RngTracker rng;
  seed_streams(rng, 8, {});
  const Inputs in = fresh();
  const Tensors out = checkpoint(body_of(in, rng), {in.x, in.other}, &rng);
  const Tensors ones = {at::ones({4, 8}, at::kDouble)};
  CHECK_THAT(said_by([&] { torch::autograd::grad({out[0]}, {in.x}, ones); }),
             Catch::StartsWith("refused: ") && Catch::Contains("backward()"));
  CHECK_FALSE(in.weight.grad().defined());
}

TEST_CASE("parameters get their gradients also where no input takes one", "[RN-3]") {
  const at::Tensor weight = random_tensor({6, 8}, 3).requires_grad_();
  const at::Tensor x = random_tensor({4, 6}, 1);
  const at::Tensor grad = random_tensor({4, 8}, 5);
  checkpoint([&](const Tensors& in) -> Tensors { return {in[0].matmul(weight)}; }, {x}, nullptr)[0]
      .backward(grad);
  CHECK(difference(x.t().matmul(grad), weight.grad()) == "");
}

TEST_CASE("undefined and integer inputs pass, unused inputs get no gradient", "[RN-3]") {
  const at::Tensor x = random_tensor({3}, 1).requires_grad_();
  const at::Tensor unused = random_tensor({3}, 2).requires_grad_();
  const at::Tensor index = at::arange(3, at::kLong);
  const Tensors out = checkpoint(
      [](const Tensors& in) -> Tensors {
        return {in[0].index_select(0, in[1]), in[1] + 1};
      },
      {x, index, at::Tensor(), unused}, nullptr);
  CHECK(out[1].equal(index + 1));
  out[0].sum().backward();
  CHECK(x.grad().equal(at::ones({3}, at::kDouble)));
  CHECK_FALSE(unused.grad().defined());
}

TEST_CASE("an input that was written to before the backward is told", "[RN-3]") {
  const at::Tensor x = random_tensor({3}, 1).requires_grad_();
  const at::Tensor half = x * 0.5;
  const at::Tensor y =
      checkpoint([](const Tensors& in) -> Tensors { return {in[0].square()}; }, {half}, nullptr)[0];
  {
    const at::NoGradGuard no_grad;
    half.add_(1);
  }
  CHECK_THROWS(y.sum().backward());
}

TEST_CASE("without gradients nothing is kept", "[RN-3]") {
  const at::NoGradGuard no_grad;
  int runs = 0;
  const at::Tensor x = random_tensor({3}, 1).requires_grad_();
  const at::Tensor y = checkpoint(
      [&](const Tensors& in) -> Tensors {
        ++runs;
        return {in[0] + 1};
      },
      {x}, nullptr)[0];
  CHECK(runs == 1);
  CHECK_FALSE(y.requires_grad());
}

// One block of a model: four activations inside, one input and one output.
at::Tensor deep(const at::Tensor& x, const at::Tensor& weight) {
  at::Tensor y = x;
  for (int i = 0; i < 4; ++i) y = at::gelu(y.matmul(weight));
  return y;
}

TEST_CASE("a checkpoint keeps its input and output only, in bytes", "[RN-3]") {
  const at::Tensor weight = random_tensor({64, 64}, 3).requires_grad_();
  const at::Tensor x = random_tensor({128, 64}, 1).requires_grad_();
  const auto one = static_cast<int64_t>(x.nbytes());
  const int64_t plain = kept_bytes([&] { return deep(x, weight); });
  const int64_t checkpointed = kept_bytes([&] {
    return checkpoint([&](const Tensors& in) -> Tensors { return {deep(in[0], weight)}; }, {x},
                      nullptr);
  });
  INFO("plain " << plain << " checkpointed " << checkpointed << " one tensor " << one);
  CHECK(plain >= 8 * one);     // before and after each gelu
  CHECK(checkpointed == one);  // the output; the input is the caller's
}

}  // namespace
}  // namespace shardproof::tests::checkpoint_test
