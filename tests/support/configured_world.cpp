#include "tests/support/configured_world.h"

#include "tests/support/run_ranks.h"

namespace shardproof::tests {

ConfiguredRuns run_configured(const sim::WorldSpec& spec, const Mesh& mesh,
                              const std::function<void(ConfiguredRank&)>& body) {
  const auto size = static_cast<size_t>(mesh.world_size());
  ConfiguredRuns runs{.failure = {},
                      .errors = std::vector<std::string>(size),
                      .times_us = std::vector<double>(size),
                      .timelines = std::vector<std::vector<sim::Stretch>>(size)};
  sim::world::EmulatedWorld world(mesh.world_size());
  world.configure(spec);
  on_threads(mesh.world_size(), [&](int64_t rank) {
    if (spec.schedule != 0) world.rank_started(rank);
    const auto index = static_cast<size_t>(rank);
    sim::world::RankClock& clock = world.clock(rank);
    try {
      MeshComm comm(mesh, rank, world.factory(rank), nullptr);
      ConfiguredRank setup{
          .rank = rank, .comm = comm, .backend = world.factory(rank), .clock = clock};
      const sim::world::ClockRun time(&clock);
      body(setup);
      runs.times_us[index] = clock.now_us();
      runs.timelines[index] = clock.timeline();
      world.rank_ended(rank);
    } catch (const std::exception& error) {
      runs.errors[index] = error.what();
      world.rank_threw(rank, error.what());
    }
  });
  runs.failure = world.failure();
  runs.schedule = world.schedule_trace();
  return runs;
}

double time_of(const std::vector<sim::Stretch>& timeline, sim::StretchKind kind) {
  double total = 0;
  for (const sim::Stretch& entry : timeline) {
    if (entry.kind == kind) total += entry.duration_us;
  }
  return total;
}

}  // namespace shardproof::tests
