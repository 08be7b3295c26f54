// A checkpoint's input spread over tp is restored to the bit and takes one share of the memory.
// What it leaves of the gradients is in scenarios/random/checkpointed_block.yaml.
#include "parallel/tp/spread_activation.h"

#include <catch2/catch.hpp>

#include "tests/support/kept_bytes.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests::spread_activation_test {
namespace {

TEST_CASE("shares put together are the tensor, whatever its size", "[RN-3][SH-5]") {
  for (const int64_t tp : {1, 2, 3, 4}) {
    for (const int64_t width : {0, 1, 2, 5, 12}) {
      const auto results = on_every_rank(
          Mesh::training({.dp = 2, .tp = tp}), [&](MeshComm& comm, int64_t) -> NamedResults {
            SpreadActivation spread(comm.along("tp"), "block");
            const at::Tensor full = random_tensor({3, width}, 7).t();  // another row-major order
            const at::Tensor kept = spread.keep(full);
            return {
                {"given", full}, {"kept", kept}, {"restored", spread.restore(kept, full.sizes())}};
          });
      for (const NamedResults& own : results) {
        CHECK(own.at("given").equal(random_tensor({3, width}, 7).t()));  // a residual uses it too
        CHECK(own.at("restored").equal(random_tensor({3, width}, 7).t()));
        CHECK(own.at("kept").numel() <= (3 * width + tp - 1) / tp);
      }
    }
  }
}

TEST_CASE("each rank keeps its share of the input's bytes", "[RN-3]") {
  std::vector<std::vector<int64_t>> bytes(4, std::vector<int64_t>(2));
  run_emulated_ranks(Mesh::training({.tp = 4}), [&](MeshComm& comm, int64_t rank) {
    const at::Tensor x = random_tensor({64, 32}, 1).requires_grad_();
    SpreadActivation spread(comm.along("tp"), "block");
    const CheckpointBody body = [](const std::vector<at::Tensor>& in) {
      return std::vector<at::Tensor>{in[0].square().sum()};
    };
    for (const bool spreads : {false, true}) {
      // Only the checkpoint holds the block's input.
      bytes[static_cast<size_t>(rank)][spreads] = kept_bytes([&] {
        return checkpoint(body, {x * 3}, nullptr, {.first_input = spreads ? &spread : nullptr});
      });
    }
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
