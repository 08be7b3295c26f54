// A drawn schedule: which rank runs next, and when each call takes effect.
#include <array>
#include <optional>

#include "sim/world/emulated/world_state.h"

namespace shardproof::sim::world {
namespace {

// The turns, of all ranks, after which a call takes effect that nobody waits for; -1: never. At
// once and never are the ends between which all others lie, so they are drawn most often.
constexpr std::array<int64_t, 8> kTurns{0, 0, 1, 2, 5, 12, -1, -1};

}  // namespace

void EmulatedWorld::Impl::set_schedule() {
  ready_.clear();
  pending_.clear();
  meetings_ = 0;
  exact.reset();
  if (is_exact_schedule(spec.schedule)) {
    exact.emplace(spec.schedule, spec.strict);
    links = LinkCost(WorldSpec());  // transfers take no time, so that none ends alone
    slots.draw_order(0);
    slots.choose(0);
    return;
  }
  // Another stream than that of the order of the ranks.
  const auto seed_words = static_cast<uint64_t>(spec.schedule);
  std::seed_seq words{seed_words & 0xffffffff, seed_words >> 32, uint64_t{1}};
  schedule_.seed(words);
  std::optional<uint64_t> seed;
  if (has_schedule()) seed = static_cast<uint64_t>(spec.schedule);
  slots.draw_order(seed);
}

void EmulatedWorld::Impl::make_ready(const std::shared_ptr<Meeting>& meeting) {
  meeting->state = Meeting::State::kReady;
  meeting->last_call = matcher.last_call(meeting->last_rank);
  if (exact) {
    ready_.push_back(meeting);
    return;
  }
  meeting->turns_left = kTurns[schedule_() % kTurns.size()];
  ready_.push_back(meeting);
  // A member that sleeps here lets the call take effect when it runs again.
  for (const int64_t sleeper : unblock(*meeting)) slots.wake(sleeper);
}

void EmulatedWorld::Impl::turn(int64_t rank) {
  if (!has_schedule()) return;
  {
    Lock lock(mutex);
    std::vector<std::shared_ptr<Meeting>> due;
    std::erase_if(ready_, [&due](const std::shared_ptr<Meeting>& meeting) {
      if (meeting->turns_left < 0 || meeting->turns_left-- > 0) return false;
      due.push_back(meeting);
      return true;
    });
    for (const std::shared_ptr<Meeting>& meeting : due) {
      if (!failure) take_effect(meeting, rank);
    }
  }
  slots.yield(rank);
}

bool EmulatedWorld::Impl::is_done(const std::shared_ptr<Meeting>& meeting, int64_t rank) {
  if (exact) {
    exact_turn(rank, nullptr, /*polls=*/true);
  } else {
    turn(rank);
  }
  Lock lock(mutex);
  // A caller that asks again and again gets its answer.
  if (!exact && !failure && meeting->state == Meeting::State::kReady && schedule_() % 2 == 0) {
    std::erase(ready_, meeting);
    take_effect(meeting, rank);
  }
  const bool done =
      meeting->state == Meeting::State::kTravelling || meeting->state == Meeting::State::kDone;
  if (!done) throw_if_failed(rank);  // a caller that asks until it is would not end
  return done;
}

}  // namespace shardproof::sim::world
