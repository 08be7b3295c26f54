// The lookup of tokens, on request in a fixed order. The values of the layer and of its gradients
// are those of the scenarios in scenarios/tp and of witness_test.cpp.
#include "parallel/tp/vocab_parallel_embedding.h"

#include <ATen/Parallel.h>

#include <catch2/catch.hpp>

#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

TEST_CASE("a deterministic lookup gives the same bits in float32, whatever the number of threads",
          "[tp][TP-3]") {
  const at::Tensor full = random_tensor({16, 64}, 1).to(at::kFloat);
  const at::Tensor ids = at::arange(4096, at::kLong).mul(7).remainder(16);
  const at::Tensor grad = random_tensor({4096, 64}, 2).to(at::kFloat);
  const auto gradient = [&](int threads) {
    at::set_num_threads(threads);
    const at::Tensor weight = full.clone().requires_grad_();
    look_up_own_tokens(weight, ids, 0, {.deterministic = true}).backward(grad);
    return weight.grad();
  };
  const int threads = at::get_num_threads();
  const at::Tensor golden = gradient(1);
  bool same = true;
  for (int i = 0; i < 12; ++i) same = same && gradient(4).equal(golden);
  at::set_num_threads(threads);
  CHECK(same);
}

}  // namespace
}  // namespace shardproof::tests
