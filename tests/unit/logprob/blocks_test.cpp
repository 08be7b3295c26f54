// Logprobs in blocks of rows: same values, bounded memory, no saved memory in inference,
// temperature.
#include <catch2/catch.hpp>

#include "base/error.h"
#include "logprob/fused_logprob.h"
#include "logprob/vocab_parallel_entropy.h"
#include "logprob/vocab_parallel_kl.h"
#include "logprob/vocab_parallel_logprob.h"
#include "tensor/tensor_memory.h"
#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests {
namespace {

struct Bytes {
  int64_t logits, kept, forward_peak, backward_peak;
};

// One rank of tp=2 has 512 rows of 2048 columns; in float32 a block of 8 rows is 64 KiB.
std::vector<Bytes> measure(at::ScalarType dtype, bool inference, double temperature = 1) {
  std::vector<Bytes> bytes(2);
  on_every_rank(Mesh::training({.tp = 2}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
    const at::Tensor leaf =
        vocab_part(random_tensor({2, 256, 4096}, 1), 2, rank).to(dtype).requires_grad_();
    const at::Tensor target = spread_ids({2, 256}, 4096);
    Bytes& own = bytes[static_cast<size_t>(rank)];
    own.logits = static_cast<int64_t>(leaf.nbytes());
    const at::Tensor grad = random_tensor({2, 256}, 2).to(logprob_type(dtype));
    std::optional<TensorMemory> memory(std::in_place);
    const at::Tensor out = vocab_parallel_logprob(
        leaf, target, comm.along("tp"), 4096,
        {.inference_only = inference, .temperature = temperature, .block_rows = 8});
    own.kept = memory->current_bytes() - static_cast<int64_t>(out.nbytes());
    own.forward_peak = memory->peak_bytes();
    if (!inference) {
      memory.emplace();
      out.backward(grad);
      own.backward_peak = memory->peak_bytes();
    }
    return {};
  });
  return bytes;
}

TEST_CASE("forward and backward hold one block beside the logits and their gradient", "[LP-8]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    for (const Bytes& bytes : measure(dtype, /*inference=*/false)) {
      INFO(c10::toString(dtype) << " logits " << bytes.logits << " kept " << bytes.kept
                                << " forward " << bytes.forward_peak << " backward "
                                << bytes.backward_peak);
      CHECK(bytes.kept * 100 <= bytes.logits);
      CHECK(bytes.forward_peak * 100 <= 15 * bytes.logits);
      CHECK(bytes.backward_peak * 100 <= 115 * bytes.logits);
      CHECK(bytes.backward_peak >= bytes.logits);  // the meter counts
    }
  }
}

TEST_CASE("inference keeps not one byte beside its result", "[LP-2][LP-8]") {
  for (const Bytes& bytes : measure(at::kFloat, /*inference=*/true)) {
    CHECK(bytes.kept == 0);
    CHECK(bytes.forward_peak * 100 <= 15 * bytes.logits);
  }
}

TEST_CASE("a temperature takes no more memory than none", "[LP-8][LP-9]") {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const auto plain = measure(dtype, /*inference=*/false);
    const auto warm = measure(dtype, /*inference=*/false, 0.7);
    for (size_t rank = 0; rank < plain.size(); ++rank) {
      INFO(c10::toString(dtype) << " rank " << rank);
      CHECK(warm[rank].kept <= plain[rank].kept);
      CHECK(warm[rank].forward_peak <= plain[rank].forward_peak);
      // The temperature adds one number per row.
      CHECK(warm[rank].backward_peak <= plain[rank].backward_peak + 512 * 8);
    }
  }
}

TEST_CASE("values and gradients do not depend on the block", "[LP-8]") {
  for (const int64_t tp : {1, 2, 3}) {
    on_every_rank(Mesh::training({.tp = tp}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
      const at::Tensor logits = vocab_part(random_tensor({3, 7, 29}, 1) * 6, tp, rank);
      const at::Tensor target = spread_ids({3, 7}, 29);
      std::vector<at::Tensor> values, grads;
      for (const int64_t block_rows : {0, 1, 4, 21, 1000}) {
        // The leading dims of this transpose are not contiguous, so each dim is a loop.
        const at::Tensor leaf = logits.transpose(0, 1).contiguous().requires_grad_();
        values.push_back(vocab_parallel_logprob(leaf.transpose(0, 1), target, comm.along("tp"), 29,
                                                {.block_rows = block_rows}));
        values.back().backward(random_tensor({3, 7}, 2));
        grads.push_back(leaf.grad());
      }
      for (size_t i = 1; i < values.size(); ++i) {
        if (!values[i].equal(values[0])) throw std::logic_error("values depend on the block");
        if (!grads[i].equal(grads[0])) throw std::logic_error("gradients depend on the block");
      }
      return {};
    });
  }
}

TEST_CASE("logits that are written to before the backward are noticed", "[LP-8]") {
  const RankRuns runs =
      try_emulated_ranks(Mesh::training({.tp = 2}), [&](MeshComm& comm, int64_t rank) {
        const at::Tensor leaf = vocab_part(random_tensor({4, 8}, 1), 2, rank).requires_grad_();
        at::Tensor logits = leaf * 1;
        const at::Tensor out =
            vocab_parallel_logprob(logits, spread_ids({4}, 8), comm.along("tp"), 8);
        {
          const at::NoGradGuard no_grad;
          logits.mul_(2);
        }
        out.backward(at::ones_like(out));
      });
  CHECK_THAT(runs.error_text(0), Catch::Contains("modified by an inplace operation"));
}

// A function from logits to one number per row, and its golden.
struct RowFunction {
  std::function<at::Tensor(const at::Tensor& local, Communicator& tp)> sharded;
  std::function<at::Tensor(const at::Tensor& full)> plain;
};

void check_rows(const RowFunction& function, const at::Tensor& logits, const Split& split) {
  INFO(describe(split));
  const at::Tensor grad = random_tensor(logits.sizes().slice(0, logits.dim() - 1), 9);
  const PlainAnswer golden = plain(logits, grad, function.plain);
  const auto results = on_every_rank_of(
      split.world, Mesh::training({.tp = split.tp}),
      [&](MeshComm& comm, int64_t rank) -> NamedResults {
        const at::Tensor leaf = vocab_part(logits, split.tp, rank).requires_grad_();
        const at::Tensor out = function.sharded(leaf, comm.along("tp"));
        out.backward(grad);
        return {{"value", out.detach()}, {"grad", leaf.grad()}};
      });
  for (size_t rank = 0; rank < results.size(); ++rank) {
    CHECK(difference(golden.value, results[rank].at("value"), 1e-12, 1) == "");
    CHECK(difference(vocab_part(golden.grad, split.tp, static_cast<int64_t>(rank), 0),
                     results[rank].at("grad"), 1e-12, 1) == "");
  }
}

std::vector<Split> tp_splits() {
  return {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {2, 1, World::kGloo}, {3, 1, World::kGloo}};
}

TEST_CASE("logprobs at a temperature", "[LP-9]") {
  const at::Tensor target = spread_ids({3, 5}, 13);
  for (const double temperature : {0.5, 0.7, 2.0}) {
    const RowFunction function{
        [&](const at::Tensor& x, Communicator& tp) {
          return vocab_parallel_logprob(x, target, tp, 13, {.temperature = temperature});
        },
        [&](const at::Tensor& x) {
          return at::log_softmax(x / temperature, -1).gather(-1, target.unsqueeze(-1)).squeeze(-1);
        }};
    for (const Split& split : tp_splits())
      check_rows(function, random_tensor({3, 5, 13}, 1) * 4, split);
  }
}

TEST_CASE("a temperature that is not above 0 is bad input", "[LP-9]") {
  for (const double temperature : {0.0, -1.0, std::nan("")}) {
    const RankRuns runs = try_emulated_ranks(Mesh::training({}), [&](MeshComm& comm, int64_t) {
      vocab_parallel_entropy(at::zeros({1, 4}, at::kDouble), comm.along("tp"), 4,
                             {.temperature = temperature});
    });
    CHECK_THAT(runs.error_text(0), Catch::Contains("a temperature of"));
  }
}

TEST_CASE("entropy over a sharded vocabulary", "[LP-9]") {
  for (const double temperature : {1.0, 0.6}) {
    const RowFunction function{[&](const at::Tensor& x, Communicator& tp) {
                                 return vocab_parallel_entropy(
                                     x, tp, 13, {.temperature = temperature, .block_rows = 4});
                               },
                               [&](const at::Tensor& x) {
                                 const at::Tensor logprobs = at::log_softmax(x / temperature, -1);
                                 return (logprobs.exp() * logprobs).sum(-1).neg();
                               }};
    for (const Split& split : tp_splits()) {
      check_rows(function, random_tensor({3, 5, 13}, 1) * 4, split);
      check_rows(function, random_tensor({6, 13}, 2) * 150, split);
    }
  }
}

TEST_CASE("entropy and its gradient with logits of minus infinity, a whole shard of them too",
          "[LP-9]") {
  at::Tensor logits = random_tensor({4, 12}, 1) * 3;
  at::Tensor masked = logits.clone();
  masked.narrow(1, 2, 5).fill_(-std::numeric_limits<double>::infinity());  // ranks 0, 1 of 4
  const at::Tensor kept = at::cat({logits.narrow(1, 0, 2), logits.narrow(1, 7, 5)}, 1);
  const at::Tensor grad = random_tensor({4}, 9);
  const PlainAnswer golden = plain(kept, grad, [](const at::Tensor& x) {
    const at::Tensor logprobs = at::log_softmax(x, -1);
    return (logprobs.exp() * logprobs).sum(-1).neg();
  });
  const at::Tensor golden_grad = at::cat(
      {golden.grad.narrow(1, 0, 2), at::zeros({4, 5}, at::kDouble), golden.grad.narrow(1, 2, 5)},
      1);
  const auto results =
      on_every_rank(Mesh::training({.tp = 4}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
        const at::Tensor leaf = vocab_part(masked, 4, rank).requires_grad_();
        const at::Tensor out = vocab_parallel_entropy(leaf, comm.along("tp"), 12);
        out.backward(grad);
        return {{"value", out.detach()}, {"grad", leaf.grad()}};
      });
  for (int64_t rank = 0; rank < 4; ++rank) {
    const NamedResults& result = results[static_cast<size_t>(rank)];
    CHECK(difference(golden.value, result.at("value")) == "");
    CHECK(difference(vocab_part(golden_grad, 4, rank), result.at("grad"), 1e-12, 1) == "");
  }
}

TEST_CASE("KL of two policies over a sharded vocabulary, both gradients", "[LP-9]") {
  const at::Tensor p = random_tensor({3, 5, 13}, 1) * 4;
  const at::Tensor q = random_tensor({3, 5, 13}, 2) * 6;
  const auto plain_kl = [](const at::Tensor& x, const at::Tensor& y) {
    const at::Tensor log_p = at::log_softmax(x / 0.8, -1), log_q = at::log_softmax(y / 0.8, -1);
    return (log_p.exp() * (log_p - log_q)).sum(-1);
  };
  const LogprobOptions options{.label = "kl", .temperature = 0.8, .block_rows = 4};
  const RowFunction of_p{[&](const at::Tensor& x, Communicator& tp) {
                           return vocab_parallel_kl(x, vocab_part(q, tp.size(), tp.rank()), tp, 13,
                                                    options);
                         },
                         [&](const at::Tensor& x) { return plain_kl(x, q); }};
  const RowFunction of_q{[&](const at::Tensor& y, Communicator& tp) {
                           const at::Tensor strided =
                               vocab_part(p, tp.size(), tp.rank()).transpose(0, 1).contiguous();
                           return vocab_parallel_kl(strided.transpose(0, 1), y, tp, 13, options);
                         },
                         [&](const at::Tensor& y) { return plain_kl(p, y); }};
  for (const Split& split : tp_splits()) {
    check_rows(of_p, p, split);
    check_rows(of_q, q, split);
  }
}

TEST_CASE("KL of a policy with itself is 0, and infinite where only q excludes a token", "[LP-9]") {
  on_every_rank(Mesh::training({.tp = 3}), [](MeshComm& comm, int64_t rank) -> NamedResults {
    at::Tensor p = random_tensor({2, 9}, 1) * 100;
    at::Tensor q = p.clone();
    q[1][4] = -std::numeric_limits<double>::infinity();
    const at::Tensor kl =
        vocab_parallel_kl(vocab_part(p, 3, rank), vocab_part(q, 3, rank), comm.along("tp"), 9);
    if (kl[0].item<double>() != 0) throw std::logic_error("KL with itself");
    if (!std::isinf(kl[1].item<double>())) throw std::logic_error("KL with an excluded token");
    p[1][4] = -std::numeric_limits<double>::infinity();
    const at::Tensor both =
        vocab_parallel_kl(vocab_part(p, 3, rank), vocab_part(q, 3, rank), comm.along("tp"), 9);
    if (both[1].item<double>() != 0) throw std::logic_error("KL with a token that both exclude");
    return {};
  });
}

struct FusedCase {
  at::Tensor hidden, weight, bias, target, grad;
};

FusedCase fused_case(int64_t vocab_size) {
  return {.hidden = random_tensor({3, 7, 6}, 1),
          .weight = random_tensor({vocab_size, 6}, 2) * 3,
          .bias = random_tensor({vocab_size}, 3),
          .target = spread_ids({3, 7}, vocab_size),
          .grad = random_tensor({3, 7}, 4)};
}

// The rows of a tp rank, of which padding rows hold 1e4.
at::Tensor weight_part(const at::Tensor& full, const Split& split, int64_t rank, double padding) {
  return vocab_part(full.dim() == 1 ? full : full.t(), split.tp, rank, padding);
}

void check_fused(const Split& split, int64_t vocab_size, bool with_bias, int64_t block_rows) {
  INFO(describe(split) << " V=" << vocab_size << " block " << block_rows);
  const FusedCase test = fused_case(vocab_size);
  const at::Tensor hidden = test.hidden.clone().requires_grad_();
  const at::Tensor weight = test.weight.clone().requires_grad_();
  const at::Tensor bias = test.bias.clone().requires_grad_();
  const at::Tensor logits = at::linear(hidden, weight, with_bias ? bias : at::Tensor());
  const at::Tensor golden =
      at::log_softmax(logits / 0.9, -1).gather(-1, test.target.unsqueeze(-1)).squeeze(-1);
  golden.backward(test.grad);
  const auto results = on_every_rank_of(
      split.world, Mesh::training({.tp = split.tp}),
      [&](MeshComm& comm, int64_t rank) -> NamedResults {
        const at::Tensor own_hidden = test.hidden.clone().requires_grad_();
        const at::Tensor own_weight =
            weight_part(test.weight, split, rank, 1e4).t().contiguous().requires_grad_();
        const at::Tensor own_bias =
            with_bias ? weight_part(test.bias, split, rank, 1e4).requires_grad_() : at::Tensor();
        const LogprobOptions options{.temperature = 0.9, .block_rows = block_rows};
        const at::Tensor out = fused_vocab_parallel_logprob(
            own_hidden, own_weight, own_bias, test.target, comm.along("tp"), vocab_size, options);
        out.backward(test.grad);
        const at::NoGradGuard no_grad;
        const at::Tensor scored = fused_vocab_parallel_logprob(
            own_hidden, own_weight, own_bias, test.target, comm.along("tp"), vocab_size, options);
        return {{"value", out.detach()},
                {"scored", scored},
                {"hidden", own_hidden.grad()},
                {"weight", own_weight.grad()},
                {"bias", with_bias ? own_bias.grad() : own_bias}};
      });
  for (size_t rank = 0; rank < results.size(); ++rank) {
    const auto tp_rank = static_cast<int64_t>(rank);
    const NamedResults& result = results[rank];
    CHECK(difference(golden.detach(), result.at("value")) == "");
    CHECK(result.at("scored").equal(result.at("value")));
    CHECK(difference(hidden.grad(), result.at("hidden")) == "");
    CHECK(difference(weight_part(weight.grad(), split, tp_rank, 0).t(), result.at("weight"), 1e-12,
                     1) == "");
    if (with_bias) {
      CHECK(difference(weight_part(bias.grad(), split, tp_rank, 0), result.at("bias"), 1e-12, 1) ==
            "");
    }
  }
}

TEST_CASE("logprobs straight from hidden states, without the logits", "[LP-8]") {
  for (const Split& split : tp_splits()) {
    check_fused(split, 13, true, 4);
    check_fused(split, 12, false, 0);
    check_fused(split, 2, true, 21);
  }
}

TEST_CASE("the fused path in lower precisions: float32 sums, gradients in the inputs' dtype",
          "[LP-8]") {
  const FusedCase test = fused_case(13);
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    INFO(c10::toString(dtype));
    // The golden uses the same rounded product, so its logits have the same roundings.
    const at::Tensor low_hidden = test.hidden.to(dtype), low_weight = test.weight.to(dtype);
    const at::Tensor logits =
        low_hidden.view({-1, 6}).mm(low_weight.t()).view({3, 7, 13}).to(at::kDouble);
    const at::Tensor golden =
        at::log_softmax(logits, -1).gather(-1, test.target.unsqueeze(-1)).squeeze(-1);
    const auto results =
        on_every_rank(Mesh::training({.tp = 2}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
          const at::Tensor hidden = low_hidden.clone().requires_grad_();
          const at::Tensor weight =
              weight_part(test.weight, {2, 1}, rank, 0).t().contiguous().to(dtype).requires_grad_();
          const at::Tensor out =
              fused_vocab_parallel_logprob(hidden, weight, {}, test.target, comm.along("tp"), 13);
          out.backward(test.grad.to(at::kFloat));
          return {{"value", out.detach()}, {"hidden", hidden.grad()}, {"weight", weight.grad()}};
        });
    for (const NamedResults& result : results) {
      CHECK(difference(golden.to(at::kFloat), result.at("value"), 1e-5) == "");
      CHECK(result.at("hidden").scalar_type() == dtype);
      CHECK(result.at("weight").scalar_type() == dtype);
    }
  }
}

TEST_CASE("the fused path holds one block of logits", "[LP-8]") {
  int64_t peak = 0;
  on_every_rank(Mesh::training({}), [&](MeshComm& comm, int64_t) -> NamedResults {
    const at::Tensor hidden = random_tensor({512, 8}, 1).requires_grad_();
    const at::Tensor weight = random_tensor({4096, 8}, 2).requires_grad_();
    const TensorMemory memory;
    fused_vocab_parallel_logprob(hidden, weight, {}, spread_ids({512}, 4096), comm.along("tp"),
                                 4096, {.block_rows = 16})
        .backward(random_tensor({512}, 3));
    peak = memory.peak_bytes();
    return {};
  });
  const int64_t all_logits = 512 * 4096 * 8;
  CHECK(peak > 0);
  CHECK(peak * 10 < all_logits);
}

}  // namespace
}  // namespace shardproof::tests
