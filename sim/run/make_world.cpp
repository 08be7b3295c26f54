#include "sim/run/make_world.h"

#include <memory>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "sim/world/rank/emulated_world_main.h"
#include "sim/world/rank/process_rank_main.h"

namespace shardproof::sim {

namespace {

RankHooks hooks_of(const WorldSetup& setup) {
  return {.on_start = setup.on_start,
          .on_call = setup.on_call,
          .before_kill = setup.before_kill,
          .on_fault = setup.on_fault,
          .on_step = setup.on_step};
}

WorldSession emulated_world(const WorldSetup& setup, const RankMain& main) {
  const auto world =
      std::make_shared<EmulatedWorldMain>(setup.world_size, setup.device, hooks_of(setup), main);
  return {.run = [world](const std::string& request,
                         int golden_fd) { return world->run(request, golden_fd); },
          .abort = [world](const std::string& why) { world->abort(why); },
          .exchange = {}};
}

// The world's store. The first get() joins it, so its caller gets the error.
class LazyStore {
 public:
  explicit LazyStore(StoreAddress address) : address_(std::move(address)) {}
  StorePtr get() {
    if (!store_) store_ = join_store(address_);
    return store_;
  }

 private:
  StoreAddress address_;
  StorePtr store_;
};

StoreAddress address_of(const WorldSetup& setup) {
  return {.pages = setup.store.pages,
          .host = setup.store.host,
          .port = setup.store.port,
          .host_it = setup.store.host_it,
          .world_size = setup.world_size,
          .prefix = setup.store.prefix};
}

WorldSession process_rank(const WorldSetup& setup, const RankMain& rank_main) {
  const std::string& host = setup.store.host;
  const bool local = host == "localhost" || host.rfind("127.", 0) == 0;
  const ProcessRankSetup rank{.backend = setup.backend,
                              .device = setup.device,
                              .rank = setup.rank,
                              .world_size = setup.world_size,
                              .local_rank = setup.local_rank,
                              .listen_host = local ? "127.0.0.1" : ""};
  const auto store = std::make_shared<LazyStore>(address_of(setup));
  const std::function<StorePtr()> join = [store] { return store->get(); };
  const auto main = std::make_shared<ProcessRankMain>(rank, join, hooks_of(setup), rank_main);
  return {.run =
              [main](const std::string& request, int golden_fd) {
                return std::vector<RankEnding>{main->run(request, golden_fd)};
              },
          .abort = {},
          .exchange =
              [store](const std::string& key, const std::string& value) {
                return exchange_text(store->get(), key, value);
              }};
}

}  // namespace

WorldSession make_world(WorldSetup setup, const RankMain& main) {
  return setup.rank < 0 ? emulated_world(setup, main) : process_rank(setup, main);
}

}  // namespace shardproof::sim
