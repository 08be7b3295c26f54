#include <catch2/catch.hpp>

#include "logprob/vocab_parallel_entropy.h"
#include "logprob/vocab_parallel_kl.h"
#include "tests/unit/logprob/worlds.h"

namespace shardproof::tests::no_grad_test {
namespace {

TEST_CASE("entropy and KL turn no gradients on that the caller has turned off", "[LP-9]") {
  on_every_rank(Mesh::training({.tp = 2}), [&](MeshComm& comm, int64_t rank) -> NamedResults {
    const at::Tensor leaf = vocab_part(random_tensor({3, 12}, 1), 2, rank).requires_grad_();
    const LogprobOptions options{.inference_only = false};
    Communicator& tp = comm.along("tp");
    const at::NoGradGuard no_grad;
    if (vocab_parallel_entropy(leaf, tp, 12, options).requires_grad() ||
        vocab_parallel_kl(leaf, leaf, tp, 12, options).requires_grad()) {
      throw std::logic_error("a graph was kept");
    }
    return {};
  });
}

}  // namespace
}  // namespace shardproof::tests::no_grad_test
