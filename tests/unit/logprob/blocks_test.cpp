// Logprobs, entropy and KL in blocks of rows: same values, bounded memory, no saved memory in
// inference, temperature.
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

// A token of probability 0 adds nothing: p log p tends to 0 with p.
at::Tensor plain_entropy(const at::Tensor& logits) {
  const at::Tensor logprobs = at::log_softmax(logits, -1);
  return (logprobs.exp() * logprobs.masked_fill(logprobs.isneginf(), 0)).sum(-1).neg();
}

at::Tensor plain_kl(const at::Tensor& p, const at::Tensor& q) {
  const at::Tensor log_p = at::log_softmax(p, -1), log_q = at::log_softmax(q, -1);
  return (log_p.exp() * (log_p - log_q)).sum(-1);
}

TEST_CASE("logprob, fused logprob, entropy and KL over a padded vocabulary at a temperature",
          "[LP-8][LP-9]") {
  const double temperature = GENERATE(0.7, 2.0);
  const int64_t vocab_size = GENERATE(13, 2);
  const LogprobOptions options{.temperature = temperature, .block_rows = 4};
  const at::Tensor p = random_tensor({3, 5, vocab_size}, 1) * 4, q = p.flip(0) * 1.5;
  const at::Tensor target = spread_ids({3, 5}, vocab_size);
  const auto of_entropy = [&](const at::Tensor& logits) {
    return VocabFunction{
        .inputs = {logits},
        .plain = [=](const Tensors& in) { return plain_entropy(in[0] / temperature); },
        .sharded =
            [=](const Tensors& in, Communicator& tp) {
              return vocab_parallel_entropy(in[0], tp, vocab_size, options);
            },
        .value_scale = 1};
  };
  // The last input of the fused function, the bias, may be missing.
  const auto of_fused = [&](Tensors hidden_weight_bias) {
    return VocabFunction{.inputs = std::move(hidden_weight_bias),
                         .uncut = 1,
                         .plain =
                             [=](const Tensors& in) {
                               const at::Tensor logits = in[0].matmul(in[1]);
                               return picked_logprob(
                                   (in.size() > 2 ? logits + in[2] : logits) / temperature, target);
                             },
                         .sharded =
                             [=](const Tensors& in, Communicator& tp) {
                               return fused_vocab_parallel_logprob(
                                   in[0], in[1].t(), in.size() > 2 ? in[2] : at::Tensor(), target,
                                   tp, vocab_size, options);
                             }};
  };
  const at::Tensor hidden = random_tensor({3, 5, 6}, 2), bias = random_tensor({vocab_size}, 4);
  const at::Tensor weight = random_tensor({6, vocab_size}, 3) * 3;
  const VocabFunction functions[] = {
      {.inputs = {p},
       .plain = [&](const Tensors& in) { return picked_logprob(in[0] / temperature, target); },
       .sharded =
           [&](const Tensors& in, Communicator& tp) {
             return vocab_parallel_logprob(in[0], target, tp, vocab_size, options);
           }},
      of_fused({hidden, weight, bias}),
      of_fused({hidden, weight}),
      of_entropy(p),
      of_entropy(p * 40),
      {.inputs = {p, q},
       .plain =
           [&](const Tensors& in) { return plain_kl(in[0] / temperature, in[1] / temperature); },
       .sharded =
           [&](const Tensors& in, Communicator& tp) {
             // The leading dims of this transpose are not contiguous, so each dim is a loop.
             const at::Tensor strided = in[0].transpose(0, 1).contiguous().transpose(0, 1);
             return vocab_parallel_kl(strided, in[1], tp, vocab_size, options);
           },
       .value_scale = 1}};
  for (const VocabFunction& function : functions) {
    for (const int64_t tp : {1, 2, 3, 4}) check_over_tp(function, tp);
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

TEST_CASE("entropy and its gradient with logits of minus infinity, a whole shard of them too",
          "[LP-9]") {
  at::Tensor logits = random_tensor({4, 12}, 1) * 3;
  logits.narrow(1, 2, 5).fill_(-std::numeric_limits<double>::infinity());  // ranks 0, 1 of 4
  check_over_tp({.inputs = {logits},
                 .plain = [](const Tensors& in) { return plain_entropy(in[0]); },
                 .sharded = [](const Tensors& in,
                               Communicator& tp) { return vocab_parallel_entropy(in[0], tp, 12); }},
                4);
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
