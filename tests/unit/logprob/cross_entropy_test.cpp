// Cross entropy over a sharded vocabulary with label smoothing, against LibTorch's on one device.
#include <ATen/core/Reduction.h>

#include <catch2/catch.hpp>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "logprob/vocab_parallel_cross_entropy.h"
#include "tensor/tensor_memory.h"
#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests {
namespace {

constexpr int64_t kSamples = 3, kTokens = 4;

// LibTorch spreads the smoothing over all V tokens, ours over those other than the target.
at::Tensor torch_loss(const at::Tensor& logits, const at::Tensor& target, double smoothing) {
  const auto vocab = static_cast<double>(logits.size(-1));
  return at::cross_entropy_loss(logits.flatten(0, 1), target.flatten(), {}, at::Reduction::None,
                                -100, smoothing * vocab / (vocab - 1))
      .view(target.sizes());
}

TEST_CASE("loss and gradient are those of one device, smoothed over the whole vocabulary",
          "[TP-5]") {
  for (const int64_t vocab : {12, 10, 4, 2}) {
    const at::Tensor target = spread_ids({kSamples, kTokens}, vocab);
    for (const double smoothing : {0.0, 0.1, 0.6}) {
      if (vocab == 2 && smoothing > 0.5) continue;  // LibTorch would need a smoothing above 1
      const VocabFunction loss{
          .inputs = {random_tensor({kSamples, kTokens, vocab}, 1) * 5},
          .plain = [&](const Tensors& in) { return torch_loss(in[0], target, smoothing); },
          .sharded =
              [&](const Tensors& in, Communicator& tp) {
                return vocab_parallel_cross_entropy(
                    in[0], target, tp, vocab, {.label_smoothing = smoothing, .block_rows = 5});
              },
          .grad_scale = 0};
      for (const int64_t tp : {1, 2, 3, 4}) check_over_tp(loss, tp);
    }
  }
}

struct LossBytes {
  int64_t logits, forward_peak, backward_peak;
};

LossBytes bytes_of(at::ScalarType dtype, bool overwrites) {
  LossBytes bytes{};
  on_every_rank(Mesh::training({.tp = 2}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
    const at::Tensor leaf = random_tensor({256, 2048}, 1 + rank).to(dtype).requires_grad_();
    const at::Tensor logits = leaf * 1;
    const at::Tensor target = spread_ids({256}, 4096);
    LossBytes own{};
    own.logits = static_cast<int64_t>(logits.nbytes());
    at::Tensor loss, grad;
    {
      const TensorMemory memory;
      loss = vocab_parallel_cross_entropy(
          logits, target, comm.along("tp"), 4096,
          {.label_smoothing = 0.1, .overwrite_logits = overwrites, .block_rows = 4});
      own.forward_peak = memory.peak_bytes();
    }
    {
      const at::Tensor ones = at::ones_like(loss);
      at::Tensor seen;
      logits.register_hook([&](const at::Tensor& arrived) { seen = arrived; });
      const TensorMemory memory;
      loss.backward(ones);
      own.backward_peak = memory.peak_bytes() - own.logits;  // without the leaf's gradient
      if (overwrites != seen.is_alias_of(logits)) throw std::runtime_error("whose memory it is");
    }
    if (rank == 0) bytes = own;
    return {};
  });
  return bytes;
}

TEST_CASE("beside the gradient no more than 15% of the logits is taken", "[TP-5]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const LossBytes bytes = bytes_of(dtype, /*overwrites=*/false);
    INFO(c10::toString(dtype) << " logits " << bytes.logits << " forward " << bytes.forward_peak
                              << " backward " << bytes.backward_peak);
    CHECK(bytes.forward_peak * 100 <= 15 * bytes.logits);
    CHECK(bytes.backward_peak * 100 <= 115 * bytes.logits);
  }
}

TEST_CASE("asked for, the gradient is written over the logits, and others that saved them are told",
          "[TP-5]") {
  CHECK(bytes_of(at::kFloat, true).backward_peak * 100 <= 15 * bytes_of(at::kFloat, true).logits);
  Communicator alone("tp", {0}, 0, nullptr, nullptr);
  const at::Tensor target = spread_ids({kSamples, kTokens}, 10);
  const at::Tensor leaf = random_tensor({kSamples, kTokens, 10}, 1).requires_grad_();
  const CrossEntropyOptions overwriting{.label_smoothing = 0.1, .overwrite_logits = true};
  const at::Tensor grad = random_tensor({kSamples, kTokens}, 5);
  const at::Tensor plain = leaf.detach().clone().requires_grad_();
  torch_loss(plain, target, 0.1).backward(grad);
  const at::Tensor logits = leaf * 1;
  vocab_parallel_cross_entropy(logits, target, alone, 10, overwriting).backward(grad);
  CHECK(difference(plain.grad(), leaf.grad()) == "");
  CHECK(difference(plain.grad(), logits.detach()) == "");  // the logits' memory holds the gradient
  const at::Tensor shared = leaf * 1;
  const at::Tensor squares = shared.square().sum();  // made first, so its backward comes last
  const at::Tensor both =
      vocab_parallel_cross_entropy(shared, target, alone, 10, overwriting).sum() + squares;
  CHECK_THROWS(both.backward());
  const at::Tensor repeated = random_tensor({1, kTokens, 10}, 1).expand({kSamples, -1, -1});
  CHECK_THROWS_AS(vocab_parallel_cross_entropy(repeated, target, alone, 10, overwriting), Error);
}

TEST_CASE("a row without gradient gives none, whatever its logits are", "[TP-5]") {
  Communicator alone("tp", {0}, 0, nullptr, nullptr);
  at::Tensor values = random_tensor({3, 10}, 1);
  values[1].fill_(std::numeric_limits<double>::quiet_NaN());
  const at::Tensor leaf = values.requires_grad_();
  const at::Tensor loss =
      vocab_parallel_cross_entropy(leaf, spread_ids({3}, 10), alone, 10, {.label_smoothing = 0.1});
  loss.backward(at::tensor({1.0, 0.0, 2.0}, at::kDouble));
  CHECK(exactly_zero(leaf.grad()[1]));
  CHECK(leaf.grad().isfinite().all().item<bool>());
}

TEST_CASE("what cannot be is refused with its numbers", "[TP-5]") {
  Communicator alone("tp", {0}, 0, nullptr, nullptr);
  const at::Tensor logits = random_tensor({3, 10}, 1);
  const at::Tensor target = spread_ids({3}, 10);
  const auto loss = [&](const at::Tensor& l, const at::Tensor& t, double smoothing) {
    return vocab_parallel_cross_entropy(l, t, alone, l.size(-1), {.label_smoothing = smoothing});
  };
  for (const double smoothing : {1.0, -0.1, 1.5, std::nan("")}) {
    CHECK_THROWS_AS(loss(logits, target, smoothing), Error);
  }
  CHECK_THROWS_AS(loss(logits, target + 10, 0), Error);
  CHECK_THROWS_AS(loss(logits.narrow(1, 0, 1), at::zeros({3}, at::kLong), 0.1), Error);
  CHECK(exactly_zero(loss(logits.narrow(1, 0, 1), at::zeros({3}, at::kLong), 0)));
  CHECK(loss(logits.narrow(0, 0, 0), target.narrow(0, 0, 0), 0.1).numel() == 0);
}

}  // namespace
}  // namespace shardproof::tests
