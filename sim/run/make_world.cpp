#include "sim/run/make_world.h"

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "sim/world/process/asked_store.h"
#include "sim/world/process/page_store.h"
#include "sim/world/rank/emulated_world_main.h"
#include "sim/world/rank/process_rank_main.h"

namespace shardproof::sim::run {

namespace {

world::RankHooks hooks_of(const world::WorldSetup& setup) {
  return {.on_start = setup.on_start,
          .on_call = setup.on_call,
          .before_kill = setup.before_kill,
          .on_fault = setup.on_fault,
          .on_step = setup.on_step,
          .change_link = setup.change_link};
}

world::WorldSession emulated_world(const world::WorldSetup& setup, const world::RankMain& main) {
  const auto world = std::make_shared<world::EmulatedWorldMain>(setup.world_size, setup.device,
                                                                hooks_of(setup), main);
  return {.run = [world](const std::string& request,
                         int golden_fd) { return world->run(request, golden_fd); },
          .abort = [world](const std::string& why) { world->abort(why); }};
}

StorePtr store_of(const world::StorePlace& place) {
  return place.pages >= 0 ? world::make_page_store(place.pages)
                          : world::make_asked_store(place.ask);
}

world::WorldSession process_rank(const world::WorldSetup& setup, const world::RankMain& rank_main) {
  const world::ProcessRankSetup rank{.backend = setup.backend,
                                     .device = setup.device,
                                     .rank = setup.rank,
                                     .world_size = setup.world_size,
                                     .local_rank = setup.local_rank,
                                     .listen_host = setup.listen_host};
  const auto main = std::make_shared<world::ProcessRankMain>(
      rank, [place = setup.store] { return store_of(place); }, hooks_of(setup), rank_main);
  return {.run =
              [main](const std::string& request, int golden_fd) {
                return std::vector<RankEnding>{main->run(request, golden_fd)};
              },
          .abort = {}};
}

}  // namespace

world::WorldSession make_world(world::WorldSetup setup, const world::RankMain& main) {
  return setup.rank < 0 ? emulated_world(setup, main) : process_rank(setup, main);
}

}  // namespace shardproof::sim::run
