// Time-outs and lost peers of Gloo are errors in sentences.
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <future>

#include "tests/support/ones.h"
#include "tests/support/run_gloo_ranks.h"

namespace shardproof::tests {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("a Gloo call that a member never enters becomes a sentence with its label",
          "[comm][gloo]") {
  std::promise<void> rank_0_gave_up;
  const RankRuns runs = try_gloo_ranks(
      Mesh({{"tp", 2}}),
      [&](MeshComm& comm, int64_t rank) {
        Communicator& tp = comm.along("tp");
        tp.barrier("start");
        if (rank == 1) return rank_0_gave_up.get_future().wait();
        const auto told =
            std::shared_ptr<void>(nullptr, [&](void*) { rank_0_gave_up.set_value(); });
        tp.all_reduce(ones(4), ReduceOp::kSum, "layers.0 forward");
      },
      std::chrono::seconds(3));
  CHECK(runs.error_code(0) == "hung");
  CHECK_THAT(
      runs.error_text(0),
      Contains("all_reduce(sum) tp[0,1] [4] float64 'layers.0 forward'") && Contains("timed out"));
  CHECK(runs.error_text(1) == "");
}

TEST_CASE("a Gloo member that leaves is a lost connection, not a time-out", "[comm][gloo]") {
  const RankRuns runs = try_gloo_ranks(Mesh({{"tp", 2}}), [](MeshComm& comm, int64_t rank) {
    comm.along("tp").barrier("start");
    if (rank == 0) comm.along("tp").all_reduce(ones(4), ReduceOp::kSum, "layers.0 forward");
  });
  CHECK(runs.error_code(0) == "aborted");
  CHECK_THAT(runs.error_text(0), Contains("lost its connection") && Contains("layers.0 forward"));
}

TEST_CASE("a Gloo group that a member never joins becomes a sentence", "[comm][gloo]") {
  const RankRuns runs = try_gloo_ranks(
      Mesh({{"tp", 2}}),
      [](MeshComm& comm, int64_t rank) {
        if (rank == 0) comm.along("tp");
      },
      std::chrono::milliseconds(500));
  CHECK(runs.error_code(0) == "hung");
  CHECK_THAT(runs.error_text(0), Contains("group tp[0,1] was not made within 500 ms"));
}

TEST_CASE("one group made twice is two groups", "[comm][gloo]") {
  std::vector<double> sums(2);
  run_gloo_ranks(Mesh({{"dp", 2}}), [&](MeshComm& comm, int64_t rank) {
    const at::Tensor first = comm.along("dp").all_reduce(ones(1), ReduceOp::kSum, "dp");
    const at::Tensor second = comm.world().all_reduce(first, ReduceOp::kSum, "world");
    sums[static_cast<size_t>(rank)] = second.item<double>();
  });
  CHECK(sums == std::vector<double>{4, 4});
}

}  // namespace
}  // namespace shardproof::tests
