// What only the emulated world does: failures at once, with both ranks and labels, and equal bits.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>

#include "base/error.h"
#include "tests/support/run_ranks.h"

namespace shardproof {
namespace {

using Catch::Matchers::Contains;
using tests::RankRuns;
using tests::try_emulated_ranks;

at::Tensor ones(int64_t count) { return at::ones({count}, at::kDouble); }

TEST_CASE("a rank that calls another collective is named with its peer at once", "[comm]") {
  const RankRuns runs = try_emulated_ranks(Mesh({{"tp", 3}}), [](MeshComm& comm, int64_t rank) {
    Communicator& tp = comm.along("tp");
    if (rank == 2) tp.all_gather(ones(4), 0, "layers.1.gather");
    else tp.all_reduce(ones(4), ReduceOp::kSum, "layers.1.reduce");
  });
  REQUIRE(runs.failure);
  CHECK(runs.failure->code == "disagreement");
  CHECK_THAT(runs.failure->message, Contains("layers.1.gather") && Contains("layers.1.reduce") &&
                                        Contains("rank") && Contains("all_gather"));
  CHECK(runs.failure->ranks.size() == 2);
  CHECK(runs.error_code(2) == "disagreement");
  int64_t named = 0;
  for (int64_t rank = 0; rank < 3; ++rank) named += runs.error_code(rank) == "disagreement" ? 1 : 0;
  CHECK(named == 2);
}

TEST_CASE("a sum over equal numbers is a sum", "[comm]") {
  tests::run_emulated_ranks(Mesh({{"dp", 2}, {"tp", 3}}), [](MeshComm& comm, int64_t rank) {
    const at::Tensor sum = comm.along("tp").all_reduce(ones(4) * rank, ReduceOp::kSum, "sum");
    const double golden = rank < 3 ? 3 : 12;
    if (!at::equal(sum, ones(4) * golden)) throw std::runtime_error("wrong sum");
  });
}

}  // namespace
}  // namespace shardproof
