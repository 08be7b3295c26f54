// On the virtual clock, the input gradient is reduced while the weight gradient is computed. What
// the weight gradient hides whole is in scenarios/clock/linear_backward.yaml and its clock_test.py.
#include <catch2/catch.hpp>

#include "collective/mappings.h"
#include "parallel/tp/async_linear.h"
#include "tests/support/configured_world.h"
#include "tests/support/rank_results.h"

namespace shardproof::tests {
namespace {

enum class Way { kAsync, kSequential };

// The exposed communication of rank 0 in one forward and backward of a column-parallel product,
// whose all_reduce of [64, 32] takes longer than its product of [64, 32] with [32, 48].
double exposed_us(Way way) {
  sim::WorldSpec slow_links;
  slow_links.in_node = {.latency_us = 1000, .gb_per_s = 1};
  slow_links.compute = sim::ComputeTime::kFixed;
  slow_links.op_us = 0;
  slow_links.gflop_per_s = 1;
  const auto runs = run_configured(slow_links, Mesh({{"tp", 2}}), [&](ConfiguredRank& rank) {
    rank.clock.stop();
    Communicator& tp = rank.comm.along("tp");
    const at::Tensor x = random_tensor({64, 32}, 1).requires_grad_();
    const at::Tensor weight = random_tensor({48, 32}, 2 + rank.rank).requires_grad_();
    const at::Tensor grad = random_tensor({64, 48}, 5 + rank.rank);
    rank.clock.start();
    const at::Tensor y = way == Way::kAsync
                             ? async_linear(x, weight, {}, tp, {.reduce_input_gradient = true})
                             : at::linear(copy_with_all_reduce_backward(x, tp, "x"), weight);
    y.backward(grad);
  });
  for (const std::string& error : runs.errors) CHECK(error == "");
  return time_of(runs.timelines[0], sim::StretchKind::kExposed);
}

TEST_CASE("what the weight gradient does not hide is exposed, no more", "[tp][TP-4][clock]") {
  const double product_us = 2.0 * 64 * 48 * 32 / 1e3;  // grad_W at 1 GFLOP/s
  CHECK(exposed_us(Way::kAsync) == Approx(exposed_us(Way::kSequential) - product_us).epsilon(1e-6));
}

}  // namespace
}  // namespace shardproof::tests
