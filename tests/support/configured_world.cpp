#include "tests/support/configured_world.h"

#include <ATen/Parallel.h>

#include <thread>

namespace shardproof::tests {
namespace {

void run_one(sim::EmulatedWorld& world, const Mesh& mesh, int64_t rank,
             const std::function<void(ConfiguredRank&)>& body, ConfiguredRuns& runs) {
  at::set_num_threads(1);
  const auto index = static_cast<size_t>(rank);
  sim::RankClock& clock = world.clock(rank);
  try {
    MeshComm comm(mesh, rank, world.factory(rank), nullptr);
    ConfiguredRank setup{
        .rank = rank, .comm = comm, .backend = world.factory(rank), .clock = clock};
    const sim::ClockRun time(&clock);
    body(setup);
    runs.times_us[index] = clock.now_us();
    runs.timelines[index] = clock.timeline();
    world.rank_ended(rank);
  } catch (const std::exception& error) {
    runs.errors[index] = error.what();
    world.rank_threw(rank, error.what());
  }
}

}  // namespace

ConfiguredRuns run_configured(const sim::WorldSpec& spec, const Mesh& mesh,
                              const std::function<void(ConfiguredRank&)>& body) {
  const auto size = static_cast<size_t>(mesh.world_size());
  ConfiguredRuns runs{.failure = {},
                      .errors = std::vector<std::string>(size),
                      .times_us = std::vector<double>(size),
                      .timelines = std::vector<std::vector<nlohmann::json>>(size)};
  sim::EmulatedWorld world(mesh.world_size());
  world.configure(spec);
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    threads.emplace_back([&, rank] {
      if (spec.schedule != 0) world.rank_started(rank);
      run_one(world, mesh, rank, body, runs);
    });
  }
  for (auto& thread : threads) thread.join();
  runs.failure = world.failure();
  runs.schedule = world.schedule_trace();
  return runs;
}

double time_of(const std::vector<nlohmann::json>& timeline, const std::string& kind) {
  double total = 0;
  for (const auto& entry : timeline) {
    if (entry.at("kind") == kind) total += entry.at("duration_us").get<double>();
  }
  return total;
}

}  // namespace shardproof::tests
