// CPU time that a call takes on a rank of the emulated world. Run by name: unit_world "[cost]".
#include <ATen/ATen.h>

#include <catch2/catch.hpp>
#include <ctime>
#include <iostream>

#include "tests/support/configured_world.h"

namespace shardproof::tests {
namespace {

constexpr int kCalls = 20000;

double cpu_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

struct Setup {
  const char* name;
  bool strict, timed, asynchronous;
};

double cost_us(const Setup& setup, int64_t elements) {
  sim::WorldSpec world;
  world.strict = setup.strict;
  std::vector<double> used(2);
  const auto runs = run_configured(world, Mesh({{"tp", 2}}), [&](ConfiguredRank& rank) {
    if (!setup.timed) rank.clock.stop();
    Communicator& tp = rank.comm.along("tp");
    const at::Tensor input = at::ones({elements}, at::kDouble);
    const double before = cpu_us();
    for (int i = 0; i < kCalls; ++i) {
      if (setup.asynchronous)
        tp.all_reduce_async(input, ReduceOp::kSum, "cost").wait();
      else
        tp.all_reduce(input, ReduceOp::kSum, "cost");
    }
    used[static_cast<size_t>(rank.rank)] = (cpu_us() - before) / kCalls;
  });
  CHECK(!runs.failure);
  return (used[0] + used[1]) / 2;
}

TEST_CASE("what watching and timing a call costs", "[.][cost]") {
  const Setup setups[] = {
      {"neither, synchronous", false, false, false}, {"clock, synchronous", false, true, false},
      {"both, synchronous", true, true, false},      {"neither, asynchronous", false, false, true},
      {"strict, asynchronous", true, false, true},   {"both, asynchronous", true, true, true}};
  for (const int64_t elements : {8, 8192}) {
    for (const Setup& setup : setups) {
      std::cout << elements << " elements, " << setup.name << ": " << cost_us(setup, elements)
                << " us\n";
    }
  }
}

}  // namespace
}  // namespace shardproof::tests
