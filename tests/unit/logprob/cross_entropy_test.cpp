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

// Compares every rank's loss and gradient with the golden's.
void check_split(const at::Tensor& logits, double smoothing, World world, const Mesh& mesh) {
  const int64_t vocab = logits.size(-1), tp = mesh.size("tp");
  const at::Tensor target = spread_ids({kSamples, kTokens}, vocab);
  const at::Tensor grad = random_tensor({kSamples, kTokens}, 5);
  const PlainAnswer golden = plain(
      logits, grad, [&](const at::Tensor& leaf) { return torch_loss(leaf, target, smoothing); });
  const auto results = on_every_rank_of(world, mesh, [&](MeshComm& comm, int64_t) -> NamedResults {
    Communicator& group = comm.along("tp");
    const at::Tensor own = vocab_part(logits, tp, group.rank()).requires_grad_();
    const at::Tensor before = own.detach().clone();
    const at::Tensor strided =
        own.permute({1, 2, 0}).contiguous().permute({2, 0, 1});  // a copy with other strides
    const at::Tensor loss = vocab_parallel_cross_entropy(
        strided, target, group, vocab, {.label_smoothing = smoothing, .block_rows = 5});
    loss.backward(grad.t().contiguous().t());
    return {
        {"loss", loss.detach()}, {"grad", own.grad()}, {"changed", own.detach().ne(before).any()}};
  });
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    const NamedResults& own = results[static_cast<size_t>(rank)];
    INFO("tp=" << tp << " vocabulary " << vocab << " smoothing " << smoothing << " rank " << rank);
    CHECK(difference(golden.value, own.at("loss")) == "");
    CHECK(difference(vocab_part(golden.grad, tp, mesh.coordinate("tp", rank), 0), own.at("grad")) ==
          "");
    CHECK_FALSE(own.at("changed").item<bool>());
  }
}

TEST_CASE("loss and gradient are those of one device, smoothed over the whole vocabulary",
          "[TP-5]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const int64_t vocab : {12, 10, 4, 2}) {
      for (const double smoothing : {0.0, 0.1, 0.6}) {
        if (vocab == 2 && smoothing > 0.5) continue;  // LibTorch would need a smoothing above 1
        check_split(random_tensor({kSamples, kTokens, vocab}, 1) * 5, smoothing, World::kEmulated,
                    Mesh::training({.tp = tp}));
      }
    }
  }
}

TEST_CASE("on a group that does not begin at rank 0, and over Gloo", "[TP-5]") {
  const at::Tensor logits = random_tensor({kSamples, kTokens, 10}, 1) * 5;
  check_split(logits, 0.2, World::kEmulated, Mesh::training({.dp = 2, .tp = 3}));
  for (const int64_t tp : {1, 2, 3, 4}) {
    check_split(logits, 0.2, World::kGloo, Mesh::training({.tp = tp}));
  }
}

TEST_CASE("two groups of different size in one process, each with its own share", "[TP-5]") {
  const at::Tensor logits = random_tensor({kSamples, kTokens, 10}, 1) * 5;
  const at::Tensor target = spread_ids({kSamples, kTokens}, 10);
  const at::Tensor golden = torch_loss(logits, target, 0.2);
  const auto results = on_every_rank(
      Mesh::training({.dp = 2, .tp = 3}), [&](MeshComm& comm, int64_t) -> NamedResults {
        NamedResults out;
        for (const char* axis : {"tp", "dp"}) {
          Communicator& group = comm.along(axis);
          out[axis] = vocab_parallel_cross_entropy(vocab_part(logits, group.size(), group.rank()),
                                                   target, group, 10, {.label_smoothing = 0.2});
        }
        return out;
      });
  for (const NamedResults& own : results) {
    CHECK(difference(golden, own.at("tp")) == "");
    CHECK(difference(golden, own.at("dp")) == "");
  }
}

TEST_CASE("gaps between logits of any size stay finite and right", "[TP-5]") {
  for (const double gap : {150.0, 1e4, 1e8}) {
    at::Tensor logits = random_tensor({kSamples, kTokens, 10}, 1);
    logits.select(-1, 7).add_(gap);  // on the last rank, which lacks the targets of some rows
    check_split(logits, 0.3, World::kEmulated, Mesh::training({.tp = 4}));
  }
}

TEST_CASE("in float32 a gap over 104 is right: the logarithm of a probability would be infinite",
          "[TP-5]") {
  at::Tensor logits = random_tensor({kSamples, kTokens, 12}, 1);
  logits.select(-1, 1).add_(200);
  const at::Tensor target = spread_ids({kSamples, kTokens}, 12);
  const at::Tensor golden = torch_loss(logits, target, 0.3);
  const auto results =
      on_every_rank(Mesh::training({.tp = 3}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
        return {{"loss",
                 vocab_parallel_cross_entropy(vocab_part(logits, 3, rank).to(at::kFloat), target,
                                              comm.along("tp"), 12, {.label_smoothing = 0.3})}};
      });
  for (const NamedResults& own : results) {
    CHECK(own.at("loss").isfinite().all().item<bool>());
    CHECK(difference(golden, own.at("loss").to(at::kDouble), 1e-6) == "");
  }
}

void check_type(at::ScalarType dtype, int64_t vocab) {
  INFO(c10::toString(dtype) << " vocabulary " << vocab);
  const at::Tensor logits =
      (random_tensor({kSamples, kTokens, vocab}, 1) * 3).to(dtype).to(at::kDouble);
  const at::Tensor target = spread_ids({kSamples, kTokens}, vocab);
  const at::Tensor grad = random_tensor({kSamples, kTokens}, 5).to(at::kFloat).to(at::kDouble);
  const PlainAnswer golden =
      plain(logits, grad, [&](const at::Tensor& leaf) { return torch_loss(leaf, target, 0.1); });
  const double eps = dtype == at::kDouble ? 1e-12 : 1e-6;
  const auto results =
      on_every_rank(Mesh::training({.tp = 2}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
        const at::Tensor own = vocab_part(logits, 2, rank).to(dtype).requires_grad_();
        const at::Tensor loss = vocab_parallel_cross_entropy(own, target, comm.along("tp"), vocab,
                                                             {.label_smoothing = 0.1});
        loss.backward(grad.to(loss.scalar_type()));
        return {{"loss", loss.detach()}, {"grad", own.grad()}};
      });
  for (int64_t rank = 0; rank < 2; ++rank) {
    const NamedResults& own = results[static_cast<size_t>(rank)];
    CHECK(own.at("loss").scalar_type() == (dtype == at::kDouble ? at::kDouble : at::kFloat));
    CHECK(own.at("grad").scalar_type() == dtype);
    CHECK(difference(golden.value, own.at("loss").to(at::kDouble), eps) == "");
    CHECK(difference(vocab_part(golden.grad, 2, rank, 0), own.at("grad").to(at::kDouble),
                     dtype == at::kBFloat16 ? 5e-3 : eps) == "");
  }
}

TEST_CASE("the result's type is the wider one, the gradient's that of the logits", "[TP-5]") {
  for (const auto dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    for (const int64_t vocab : {12, 2 * 1031}) check_type(dtype, vocab);
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
  const PlainAnswer golden =
      plain(leaf, grad, [&](const at::Tensor& l) { return torch_loss(l * 1, target, 0.1); });
  const at::Tensor logits = leaf * 1;
  vocab_parallel_cross_entropy(logits, target, alone, 10, overwriting).backward(grad);
  CHECK(difference(golden.grad, leaf.grad()) == "");
  CHECK(difference(golden.grad, logits.detach()) == "");  // the logits' memory holds the gradient
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
