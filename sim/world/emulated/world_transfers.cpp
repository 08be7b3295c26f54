// Begin and end of transfers on a world's virtual clock.
#include <algorithm>
#include <utility>

#include "sim/world/emulated/world_state.h"

namespace shardproof::sim::world {

// Called when all members have arrived. With free links the transfer's times are known at once;
// else they depend on other groups (let_transfers_end).
void EmulatedWorld::Impl::start_transfer(EmulatedGroup& group, const EmulatedGroup::Channel& of,
                                         const std::shared_ptr<Meeting>& meeting) {
  if (!meeting->timed) return;
  const auto last = std::max_element(meeting->issued_us.begin(), meeting->issued_us.end());
  const auto [place, is_new] = group.channels.try_emplace(of);
  EmulatedGroup::ChannelState& channel = place->second;
  if (is_new) channel.number = channel_count_++;
  TransferTime& time = meeting->transfer;
  time.timed = true;
  time.ready_us = *last;
  time.last_rank = (*meeting->members)[static_cast<size_t>(last - meeting->issued_us.begin())];
  if (links.is_free()) {
    time.begin_us = std::max(time.ready_us, channel.busy_until_us);
    time.end_us = time.begin_us;
    channel.busy_until_us = time.end_us;
    return;
  }
  const double bytes = bytes_moved(meeting->op, meeting->tensors);
  const int64_t transfer =
      traffic.add({.channel = channel.number,
                   .ready_us = time.ready_us,
                   .cost = links.collective(meeting->op, bytes, *meeting->members),
                   .ranks = *meeting->members,
                   .is_message = is_message(meeting->op)});
  meeting->travels = true;
  travelling_[transfer] = meeting;
}

std::vector<int64_t> EmulatedWorld::Impl::release(Meeting& meeting) {
  meeting.state = Meeting::State::kDone;
  return unblock(meeting);
}

std::vector<int64_t> EmulatedWorld::Impl::unblock(Meeting& meeting) {
  for (const int64_t rank : meeting.sleepers) {
    ranks[static_cast<size_t>(rank)]->blocked_on = nullptr;
    --blocked;
  }
  return std::exchange(meeting.sleepers, {});
}

std::vector<int64_t> EmulatedWorld::Impl::finish(Meeting& meeting) {
  if (!meeting.travels || failure) return release(meeting);
  meeting.state = Meeting::State::kTravelling;
  return {};
}

// Called when every rank sleeps or has ended. No transfer can begin before the first end of one, so
// the times are the same in every schedule of threads.
void EmulatedWorld::Impl::let_transfers_end() {
  while (!failure && all_sleep() && !traffic.is_idle()) {
    for (const LinkTraffic::Ended& ended_now : traffic.next()) {
      const auto found = travelling_.find(ended_now.transfer);
      const std::shared_ptr<Meeting> meeting = found->second;
      travelling_.erase(found);
      meeting->travels = false;
      meeting->transfer.begin_us = ended_now.begin_us;
      meeting->transfer.end_us = ended_now.end_us;
      // With a schedule its time may be known before it takes effect.
      if (meeting->state == Meeting::State::kReady) continue;
      for (const int64_t sleeper : release(*meeting)) slots.wake(sleeper);
    }
  }
}

void EmulatedWorld::Impl::forget_transfers() {
  travelling_.clear();
  traffic = LinkTraffic(spec);
  channel_count_ = 0;
}

}  // namespace shardproof::sim::world
