// The functions that rank threads and the harness call.
#include "sim/world/emulated/emulated_world.h"

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "base/error.h"
#include "sim/world/emulated/emulated_backend.h"
#include "sim/world/emulated/world_state.h"

namespace shardproof::sim::world {

EmulatedWorld::EmulatedWorld(int64_t world_size) {
  SHARDPROOF_ASSERT(world_size >= 1, "a world has a rank");
  impl_ = std::make_shared<Impl>(world_size);
}

EmulatedWorld::~EmulatedWorld() = default;

int64_t EmulatedWorld::world_size() const { return impl_->world_size; }

BackendFactory EmulatedWorld::factory(int64_t rank) {
  SHARDPROOF_ASSERT(rank >= 0 && rank < world_size(), "a rank of this world");
  return [impl = impl_, rank, generation = impl_->generation.load()](
             const std::string& name,
             const std::vector<int64_t>& ranks) -> c10::intrusive_ptr<c10d::Backend> {
    return make_emulated_backend(impl, impl->join_group(name, ranks), rank, generation);
  };
}

void EmulatedWorld::configure(const WorldSpec& spec) {
  const Lock lock(impl_->mutex);
  SHARDPROOF_ASSERT(impl_->ended == 0, "a world is configured before its ranks run");
  impl_->spec = spec;
  impl_->links = LinkCost(spec);
  impl_->traffic = LinkTraffic(spec);
  impl_->make_ranks();
  impl_->set_schedule();
}

RankClock& EmulatedWorld::clock(int64_t rank) {
  return impl_->ranks.at(static_cast<size_t>(rank))->clock;
}

void EmulatedWorld::rank_started(int64_t rank) { impl_->slots.enter(rank); }

void EmulatedWorld::rank_ended(int64_t rank) {
  Lock lock(impl_->mutex);
  impl_->end_rank(rank);
}

void EmulatedWorld::rank_threw(int64_t rank, const std::string& why) {
  Lock lock(impl_->mutex);
  impl_->fail({.code = "threw",
               .message = "rank " + std::to_string(rank) + " threw: " + why,
               .ranks = {rank},
               .fix = "look at what that rank threw"});
  impl_->end_rank(rank);
}

void EmulatedWorld::abort(const std::string& code, const std::string& why) {
  const Lock lock(impl_->mutex);
  impl_->fail({.code = code, .message = why, .ranks = {}});
}

std::optional<Finding> EmulatedWorld::failure() const {
  const Lock lock(impl_->mutex);
  return impl_->failure;
}

std::string EmulatedWorld::last_call(int64_t rank) const {
  const Lock lock(impl_->mutex);
  return impl_->matcher.last_call(rank);
}

int64_t EmulatedWorld::call_count(int64_t rank) const {
  const Lock lock(impl_->mutex);
  return impl_->ranks.at(static_cast<size_t>(rank))->call_count;
}

std::optional<ScheduleTrace> EmulatedWorld::schedule_trace() const {
  const Lock lock(impl_->mutex);
  if (!impl_->exact) return std::nullopt;
  return impl_->exact->trace();
}

void EmulatedWorld::reset() {
  const Lock lock(impl_->mutex);
  SHARDPROOF_ASSERT(impl_->ended == world_size(), "a world is reset when all its ranks have ended");
  impl_->make_ranks();
  impl_->slots.reset();
  impl_->groups.clear();
  impl_->open.clear();
  impl_->matcher = Matcher(world_size());
  impl_->forget_transfers();
  impl_->blocked = 0;
  impl_->ended = 0;
  impl_->failure.reset();
  ++impl_->generation;
}

}  // namespace shardproof::sim::world
