// A checkpoint's input spread over tp is restored to the bit and takes one share of the memory.
#include "parallel/tp/spread_activation.h"

#include <catch2/catch.hpp>

#include "random/region_dropout.h"
#include "random/rng_seeds.h"
#include "tests/support/kept_bytes.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests::spread_activation_test {
namespace {

using Tensors = std::vector<at::Tensor>;

TEST_CASE("shares put together are the tensor, whatever its size", "[RN-3][SH-5]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const int64_t width : {0, 1, 2, 5, 12}) {
      const auto results = on_every_rank(
          Mesh::training({.dp = 2, .tp = tp}), [&](MeshComm& comm, int64_t) -> NamedResults {
            SpreadActivation spread(comm.along("tp"), "block");
            const at::Tensor full = random_tensor({3, width}, 7).t();  // another row-major order
            const at::Tensor kept = spread.keep(full);
            return {{"kept", kept}, {"restored", spread.restore(kept, full.sizes())}};
          });
      for (const NamedResults& own : results) {
        CHECK(own.at("restored").equal(random_tensor({3, width}, 7).t()));
        CHECK(own.at("kept").numel() <= (3 * width + tp - 1) / tp);
      }
    }
  }
}

struct Answer {
  at::Tensor y, x_grad, other_grad, weight_grad;
};

Answer run(Communicator& tp, bool spreads) {
  RngTracker rng;
  seed_streams(rng, 6, {.tp_rank = tp.rank(), .tp_size = tp.size()});
  const at::Tensor x = random_tensor({5, 7}, 1).requires_grad_();
  const at::Tensor other = random_tensor({5, 7}, 2).requires_grad_();
  const at::Tensor weight = random_tensor({7, 7}, 3 + tp.rank()).requires_grad_();
  SpreadActivation spread(tp, "block");
  const at::Tensor input = x * 1;
  const CheckpointBody body = [&](const Tensors& in) -> Tensors {
    const at::Tensor inner = at::gelu(in[0].matmul(weight)) * in[1];
    return {region_dropout(inner, 0.3, HeldOverTp::kParts, rng, "x")};
  };
  const at::Tensor y = spreads ? checkpoint(body, {input, other}, &rng, {.first_input = &spread})[0]
                               : body({input, other})[0];
  // The caller's tensor, which a residual uses, has not changed.
  (y + input).backward(random_tensor({5, 7}, 8));
  return {y.detach(), x.grad(), other.grad(), weight.grad()};
}

TEST_CASE("gradients through a spread checkpoint are those without", "[RN-3]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    on_every_rank(Mesh::training({.tp = tp}), [&](MeshComm& comm, int64_t) -> NamedResults {
      const Answer plain = run(comm.along("tp"), false);
      const Answer spread = run(comm.along("tp"), true);
      const bool equal = plain.y.equal(spread.y) && plain.x_grad.equal(spread.x_grad) &&
                         plain.other_grad.equal(spread.other_grad) &&
                         plain.weight_grad.equal(spread.weight_grad);
      if (!equal) throw std::runtime_error("a spread checkpoint gives other gradients");
      return {};
    });
  }
}

TEST_CASE("each rank keeps its share of the input's bytes", "[RN-3]") {
  std::vector<std::vector<int64_t>> bytes(4, std::vector<int64_t>(2));
  on_every_rank(Mesh::training({.tp = 4}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
    const at::Tensor x = random_tensor({64, 32}, 1).requires_grad_();
    SpreadActivation spread(comm.along("tp"), "block");
    const CheckpointBody body = [](const Tensors& in) -> Tensors { return {in[0].square().sum()}; };
    for (const bool spreads : {false, true}) {
      // Only the checkpoint holds the block's input.
      bytes[static_cast<size_t>(rank)][spreads] = kept_bytes([&] {
        return checkpoint(body, {x * 3}, nullptr, {.first_input = spreads ? &spread : nullptr});
      });
    }
    return {};
  });
  constexpr int64_t kInput = 64 * 32 * 8, kScalars = 64;
  for (const auto& own : bytes) {
    INFO("whole " << own[0] << " spread " << own[1]);
    CHECK(own[0] - own[1] == kInput - kInput / 4);
    CHECK(own[1] <= kInput / 4 + kScalars);
  }
}

}  // namespace
}  // namespace shardproof::tests::spread_activation_test
