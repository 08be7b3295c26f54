// What experts cost: CPU of all threads for the steps of a case, so that other programs on the
// machine count little.
//
//   shardproof-bench-experts [FLAGS OF GOOGLE BENCHMARK]   from the root of the sources
//
// Behind the table it prints two ratios, of the best repetition each: four ranks with ep 4 beside
// one rank that loops over all experts for the same tokens; and the golden, which computes every
// expert for every token, beside the golden of a dense model of equal active size.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "golden/single_device.h"
#include "sim/case/scenario/scenario.h"
#include "sim/world/emulated/emulated_world.h"
#include "sim/world/rank/case_inputs.h"
#include "sim/world/rank/rank_main.h"
#include "sim/world/rank/run_rank.h"
#include "tests/support/run_ranks.h"

namespace shardproof::bench {
namespace {

sim::CaseSpec case_named(const std::string& name) {
  for (const sim::CaseSpec& spec : sim::parse_scenario("bench/experts.yaml").cases) {
    if (spec.name.find(name) != std::string::npos) return spec;
  }
  throw std::runtime_error(fmt::format("bench/experts.yaml has no case {}", name));
}

// The ranks of a case on threads of an emulated world; its inputs are loaded before.
void run_ranks(benchmark::State& state, const std::string& name) {
  const sim::CaseSpec spec = case_named(name);
  const int64_t ranks = spec.parallel.world_size();
  sim::world::CaseInputsCache inputs;
  inputs.get(spec);
  for ([[maybe_unused]] auto _ : state) {
    sim::world::EmulatedWorld world(ranks);
    tests::rethrow_first(tests::on_threads(ranks, [&](int64_t rank) {
      sim::world::RankEnv env;
      env.rank = rank;
      env.world_size = ranks;
      env.make_backend = world.factory(rank);
      env.inputs = &inputs;
      try {
        sim::world::rank_main(spec, env);
        world.rank_ended(rank);
      } catch (const std::exception& error) {
        world.rank_threw(rank, error.what());
        throw;
      }
    }));
  }
}

void run_golden(benchmark::State& state, const std::string& name) {
  const sim::CaseSpec spec = case_named(name);
  const golden::CaseData data = golden::load_case_data(spec);
  NoProbe unwatched;
  for ([[maybe_unused]] auto _ : state) {
    golden::run_single_device(spec, data, {.dtype = at::kDouble}, unwatched);
  }
}

// Prints what Google Benchmark prints, and keeps the least CPU time of each benchmark.
class Least : public benchmark::ConsoleReporter {
 public:
  void ReportRuns(const std::vector<Run>& runs) override {
    ConsoleReporter::ReportRuns(runs);
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration || run.error_occurred) continue;
      double& least =
          cpu_.try_emplace(run.run_name.function_name, std::numeric_limits<double>::max())
              .first->second;
      least = std::min(least, run.GetAdjustedCPUTime());
    }
  }

  // Nothing where a flag has left one of them out.
  void print_ratio(const std::string& what, const std::string& over, double aim) const {
    const auto one = cpu_.find(what), other = cpu_.find(over);
    if (one == cpu_.end() || other == cpu_.end()) return;
    fmt::print("{:<18} {:.2f} times {} (aim: {})\n", what, one->second / other->second, over, aim);
  }

 private:
  std::map<std::string, double> cpu_;
};

void add(const std::string& name, void (*run)(benchmark::State&, const std::string&),
         const std::string& of_case) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [run, of_case](benchmark::State& state) { run(state, of_case); })
      ->Unit(benchmark::kMillisecond)
      ->MeasureProcessCPUTime()
      ->Iterations(1)
      ->Repetitions(3);
}

}  // namespace
}  // namespace shardproof::bench

int main(int count, char** words) {
  using namespace shardproof::bench;
  shardproof::sim::world::prepare_rank_thread();
  benchmark::Initialize(&count, words);
  if (benchmark::ReportUnrecognizedArguments(count, words)) return 2;
  add("loop", run_ranks, "one");
  add("ep4/all_to_all", run_ranks, "all_to_all");
  add("ep4/all_gather", run_ranks, "all_gather");
  add("golden/dense", run_golden, "dense");
  add("golden/masked_loop", run_golden, "one");
  Least least;
  benchmark::RunSpecifiedBenchmarks(&least);
  least.print_ratio("ep4/all_to_all", "loop", 1.5);
  least.print_ratio("ep4/all_gather", "loop", 1.5);
  least.print_ratio("golden/masked_loop", "golden/dense", 3);
  return 0;
}
