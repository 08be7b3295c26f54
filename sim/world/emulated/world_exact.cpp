// A run under an exact schedule (exact_schedule.h): its steps, and which of them goes first.
#include <algorithm>
#include <utility>

#include "sim/world/emulated/world_state.h"

namespace shardproof::sim::world {
namespace {

void add_memory(const Parts& parts, bool written, std::vector<MemoryRange>& memory) {
  for (const at::Tensor& tensor : parts.tensors()) {
    if (!tensor.defined() || tensor.numel() == 0) continue;
    int64_t last = 0;
    for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
      last += (tensor.size(dim) - 1) * tensor.stride(dim);
    }
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    memory.push_back({.begin = begin,
                      .end = begin + static_cast<uintptr_t>(last + 1) * tensor.itemsize(),
                      .written = written});
  }
}

ScheduleStep effect_of(const Meeting& meeting) {
  return {
      .is_effect = true, .id = meeting.number, .ranks = *meeting.members, .memory = meeting.memory};
}

}  // namespace

void EmulatedWorld::Impl::note_arrival(const std::shared_ptr<Meeting>& meeting, int64_t rank,
                                       const Member& tensors) {
  if (meeting->arrived.empty()) {
    meeting->number = meetings_++;
    pending_.push_back(meeting);
  }
  meeting->arrived.push_back(rank);
  add_memory(tensors.input, /*written=*/false, meeting->memory);
  add_memory(tensors.output, /*written=*/true, meeting->memory);
}

// No call that it is in can take effect before it runs on.
bool EmulatedWorld::Impl::goes_first(int64_t rank) const {
  if (exact->strict()) return true;
  return std::ranges::none_of(pending_, [&](const std::shared_ptr<Meeting>& one) {
    return std::ranges::find(one->arrived, rank) != one->arrived.end();
  });
}

// All members wait for it, and no other call uses its memory.
bool EmulatedWorld::Impl::goes_first(const Meeting& meeting) const {
  const bool awaited = std::ranges::all_of(*meeting.members, [&](int64_t rank) {
    return ranks[static_cast<size_t>(rank)]->goes_on_after.get() == &meeting;
  });
  const ScheduleStep effect = effect_of(meeting);
  return (awaited || exact->strict() || meeting.memory.empty()) &&
         std::ranges::none_of(pending_, [&](const std::shared_ptr<Meeting>& other) {
           return other.get() != &meeting && exact->overlap(effect, effect_of(*other));
         });
}

std::vector<ScheduleStep> EmulatedWorld::Impl::steps() const {
  std::vector<ScheduleStep> steps, polling;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const RankState& state = *ranks[rank];
    const Meeting* after = state.goes_on_after.get();
    if (state.ended || (after != nullptr && after->state != Meeting::State::kDone)) continue;
    const auto id = static_cast<int64_t>(rank);
    (state.polls ? polling : steps).push_back({.id = id, .first = goes_first(id)});
  }
  for (const std::shared_ptr<Meeting>& meeting : ready_) {
    steps.push_back(effect_of(*meeting));
    steps.back().first = goes_first(*meeting);
  }
  return steps.empty() ? polling : steps;
}

void EmulatedWorld::Impl::choose_next(int64_t rank) {
  while (!failure) {
    const std::vector<ScheduleStep> possible = steps();
    if (possible.empty()) return;  // all have ended, or the matcher will say why none goes on
    const ScheduleStep chosen = exact->choose(possible);
    if (!chosen.is_effect) return slots.choose(chosen.id);
    const auto found = std::ranges::find_if(
        ready_, [&](const std::shared_ptr<Meeting>& one) { return one->number == chosen.id; });
    const std::shared_ptr<Meeting> meeting = *found;
    ready_.erase(found);
    std::erase(pending_, meeting);
    take_effect(meeting, rank);
  }
}

void EmulatedWorld::Impl::exact_turn(int64_t rank, std::shared_ptr<Meeting> after, bool polls) {
  RankState& state = *ranks[static_cast<size_t>(rank)];
  {
    Lock lock(mutex);
    if (failure) return;
    state.goes_on_after = std::move(after);
    state.polls = polls;
    choose_next(rank);
  }
  slots.yield(rank);
  const Lock lock(mutex);
  state.goes_on_after.reset();
  state.polls = false;
}

}  // namespace shardproof::sim::world
