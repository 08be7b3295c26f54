// The worlds that workers hold.
#include "sim/cli/make_world.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "sim/rank/emulated_world_main.h"
#include "sim/rank/process_rank_main.h"

namespace shardproof::sim {

namespace {

RankHooks hooks_of(const WorldSetup& setup) {
  return {.on_start = setup.on_start, .on_call = setup.on_call, .before_kill = setup.before_kill};
}

WorldSession emulated_world(const WorldSetup& setup) {
  const auto world =
      std::make_shared<EmulatedWorldMain>(setup.world_size, setup.device, hooks_of(setup));
  return {.run = [world](const std::string& request, int golden_fd) {
            return world->run(request, golden_fd);
          },
          .abort = [world](const std::string& why) { world->abort(why); }};
}

WorldSession process_rank(const WorldSetup& setup) {
  const ProcessRankSetup rank{.backend = setup.backend,
                              .device = setup.device,
                              .rank = setup.rank,
                              .world_size = setup.world_size,
                              .local_rank = setup.rank};
  const auto make_store = [fd = setup.store_listen_fd, port = setup.store_port,
                           world_size = setup.world_size] {
    return join_local_store(fd, port, world_size);
  };
  const auto main = std::make_shared<ProcessRankMain>(rank, make_store, hooks_of(setup));
  return {.run = [main](const std::string& request, int golden_fd) {
    return std::vector<RankEnding>{main->run(request, golden_fd)};
  }};
}

}  // namespace

WorldSession make_world(WorldSetup setup) {
  return setup.rank < 0 ? emulated_world(setup) : process_rank(setup);
}

}  // namespace shardproof::sim
