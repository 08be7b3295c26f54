// On the virtual clock, the input gradient is reduced while the weight gradient is computed, and
// the sequence-parallel all_gather runs while the input gradient is computed.
#include <catch2/catch.hpp>

#include "collective/mappings.h"
#include "parallel/tp/async_linear.h"
#include "tests/support/configured_world.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

// A product of [64, 32] with [32, 48] takes 196.6 us, an all_reduce of [64, 32] at least 26.4 us.
sim::WorldSpec timed_links(double latency_us) {
  sim::WorldSpec world;
  world.in_node = {.latency_us = latency_us, .gb_per_s = 1};
  world.compute = sim::ComputeTime::kFixed;
  world.op_us = 0;
  world.gflop_per_s = 1;
  return world;
}

struct Times {
  double total = 0, exposed = 0, communication = 0;
};

enum class Way { kAsync, kSequential };

// The times of rank 0 for one forward and backward of a column-parallel product.
Times times_of(Way way, bool sp, double latency_us) {
  const auto runs =
      run_configured(timed_links(latency_us), Mesh({{"tp", 2}}), [&](ConfiguredRank& rank) {
        rank.clock.stop();
        Communicator& tp = rank.comm.along("tp");
        const at::Tensor x = random_tensor({sp ? 32 : 64, 32}, 1).requires_grad_();
        const at::Tensor weight = random_tensor({48, 32}, 2 + rank.rank).requires_grad_();
        const at::Tensor grad = random_tensor({64, 48}, 5 + rank.rank);
        rank.clock.start();
        at::Tensor y;
        if (way == Way::kAsync) {
          y = async_linear(x, weight, {}, tp,
                           {.reduce_input_gradient = !sp, .sequence_parallel = sp});
        } else {
          const at::Tensor input = sp ? all_gather_with_reduce_scatter_backward(x, tp, 0, "x")
                                      : copy_with_all_reduce_backward(x, tp, "x");
          y = at::linear(input, weight);
        }
        y.backward(grad);
      });
  for (const std::string& error : runs.errors) CHECK(error == "");
  return {.total = runs.times_us[0],
          .exposed = time_of(runs.timelines[0], "exposed"),
          .communication = time_of(runs.timelines[0], "communication")};
}

TEST_CASE("the input gradient's all-reduce hides behind the weight gradient", "[tp][TP-4][clock]") {
  const Times sequential = times_of(Way::kSequential, false, 10);
  const Times overlapped = times_of(Way::kAsync, false, 10);
  CHECK(sequential.exposed == Approx(sequential.communication));
  CHECK(overlapped.communication == Approx(sequential.communication));
  CHECK(overlapped.exposed == Approx(0).margin(1e-9));
  CHECK(overlapped.total == Approx(sequential.total - sequential.communication));
}

TEST_CASE("what the weight gradient does not hide is exposed, no more", "[tp][TP-4][clock]") {
  const Times sequential = times_of(Way::kSequential, false, 1000);
  const Times overlapped = times_of(Way::kAsync, false, 1000);
  const double product_us = 2.0 * 64 * 48 * 32 / 1e3;  // grad_W at 1 GFLOP/s
  CHECK(overlapped.exposed == Approx(sequential.exposed - product_us).epsilon(1e-6));
}

TEST_CASE("sequence parallel: both calls of the backward run behind a product",
          "[tp][TP-4][clock]") {
  const Times overlapped = times_of(Way::kAsync, true, 10);
  // Only the forward's gather is exposed, which is one of two equal gathers.
  const Times sequential = times_of(Way::kSequential, true, 10);
  const double gather = overlapped.communication - sequential.communication;  // the re-gather
  CHECK(gather > 10);
  CHECK(overlapped.exposed == Approx(gather));
  CHECK(sequential.exposed == Approx(sequential.communication));
}

}  // namespace
}  // namespace shardproof::tests
