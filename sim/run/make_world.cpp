#include "sim/run/make_world.h"

#include <memory>

#include "sim/world/rank/emulated_world_main.h"
#include "sim/world/rank/process_rank_main.h"

namespace shardproof::sim::run {

world::WorldSession make_world(const world::WorldSetup& setup, const world::RankMain& main) {
  if (setup.rank >= 0) {
    const auto rank = std::make_shared<world::ProcessRankMain>(setup, main);
    return {.run = [rank](const CaseSpec& spec, int golden_fd) -> std::vector<RankEnding> {
      return {rank->run(spec, golden_fd)};
    }};
  }
  const auto world =
      std::make_shared<world::EmulatedWorldMain>(setup.world_size, setup.device, setup.hooks, main);
  return {
      .run = [world](const CaseSpec& spec, int golden_fd) { return world->run(spec, golden_fd); },
      .abort = [world](const std::string& why) { world->abort(why); }};
}

}  // namespace shardproof::sim::run
