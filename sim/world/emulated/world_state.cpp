// How members meet, sleep, wake and fail.
#include "sim/world/emulated/world_state.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <thread>

#include "base/error.h"
#include "sim/world/match/agreement.h"

namespace shardproof::sim {
namespace {

std::string fix_for(const std::string& code) {
  if (code == "threw") return "look at what that rank threw";
  if (code == "never_waited") return "wait() for every pending collective, on every member";
  if (code == "in_flight") return "wait() for the call before its buffers are used";
  return "make every member enter the same calls in the same order";
}

Error error_for(const WorldFailure& failure, int64_t rank) {
  const bool named =
      std::find(failure.ranks.begin(), failure.ranks.end(), rank) != failure.ranks.end();
  return Error({.kind = ErrorKind::kFailed,
                .what = named ? failure.message : "aborted: " + failure.message,
                .fix = failure.fix.empty() ? fix_for(failure.code) : failure.fix,
                .code = named ? failure.code : "aborted"});
}

const at::Tensor* any_device_tensor(const Member& member) {
  for (const Parts* parts : {&member.input, &member.output}) {
    for (const at::Tensor& tensor : parts->tensors()) {
      if (tensor.defined() && !tensor.is_cpu()) return &tensor;
    }
  }
  return nullptr;
}

c10::Event record_event(const at::Tensor& tensor) {
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  c10::Event event(tensor.device().type());
  event.record(guard.getStream(tensor.device()));
  return event;
}

void make_stream_wait(const c10::Event& event, c10::Device device) {
  event.block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

// Two at least: a rank that hangs leaves a slot to the others.
int64_t slot_count() { return std::max<int64_t>(2, std::thread::hardware_concurrency()); }

std::string group_key(const std::string& name, const std::vector<int64_t>& ranks, int64_t count) {
  return name + list_text(ranks) + "#" + std::to_string(count);
}

}  // namespace

EmulatedWorld::Impl::Impl(int64_t size) : slots(size, slot_count()), world_size(size) {
  make_ranks();
}

void EmulatedWorld::Impl::make_ranks() {
  ranks.clear();
  for (int64_t rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::make_unique<RankState>());
    ranks.back()->clock = RankClock(spec, rank);
  }
}

void EmulatedWorld::Impl::stop(int64_t rank, WorldFailure why) {
  const std::lock_guard lock(mutex);
  fail(std::move(why));
  throw error_for(*failure, rank);
}

void EmulatedWorld::Impl::throw_if_failed(int64_t rank) const {
  if (failure) throw error_for(*failure, rank);
}

void EmulatedWorld::Impl::check_generation(int64_t expected) const {
  if (expected == generation) return;
  throw Error({.kind = ErrorKind::kFailed,
               .what = "a call on a communicator of an earlier case of this world",
               .fix = "make the communicators anew for each case",
               .code = "aborted"});
}

void EmulatedWorld::Impl::fail(WorldFailure first) {
  if (failure) return;
  failure = std::move(first);
  slots.open();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::shared_ptr<Meeting>& meeting = ranks[rank]->blocked_on;
    if (!meeting || meeting->state == Meeting::State::kCarryingOut) continue;
    meeting = nullptr;
    --blocked;
    slots.wake(static_cast<int64_t>(rank));
  }
}

void EmulatedWorld::Impl::check_agreement(const Meeting& meeting, const Arrival& arrival) {
  const bool pairwise = is_pairwise(arrival.line);
  for (size_t i = 0; i < meeting.lines.size(); ++i) {
    if (!meeting.arrived[i]) continue;
    const CallLine& other = meeting.lines[i];
    if (const auto what = difference(other, arrival.line)) {
      const bool ordered = other.rank < arrival.line.rank;
      const CallLine& low = ordered ? other : arrival.line;
      const CallLine& high = ordered ? arrival.line : other;
      const std::string difference_text = difference(low, high).value_or(*what);
      fail({.code = "disagreement",
            .message = describe_disagreement(low, high, difference_text),
            .ranks = {low.rank, high.rank}});
      throw_if_failed(arrival.line.rank);
    }
    if (!pairwise) return;
  }
}

void EmulatedWorld::Impl::carry_out_meeting(Meeting& meeting) {
  const at::NoGradGuard no_grad;
  std::vector<Member*> members;
  for (Member& member : meeting.tensors) members.push_back(&member);
  const at::Tensor* on_device = nullptr;
  for (const Member& member : meeting.tensors) {
    if (on_device == nullptr) on_device = any_device_tensor(member);
  }
  if (on_device != nullptr) {
    for (const c10::Event& event : meeting.ready) make_stream_wait(event, on_device->device());
  }
  carry_out(meeting.motion, meeting.op, meeting.root, members);
  if (on_device == nullptr) return;
  meeting.done = record_event(*on_device);
  meeting.device = on_device->device();
}

std::shared_ptr<Meeting> EmulatedWorld::Impl::arrive(
    EmulatedGroup& group, const EmulatedGroup::Key& key,
    std::shared_ptr<const std::vector<int64_t>> members, Arrival arrival,
    int64_t caller_generation) {
  const int64_t rank = arrival.line.rank;
  const at::Tensor* on_device = any_device_tensor(arrival.tensors);
  std::optional<c10::Event> ready;
  if (on_device != nullptr) ready = record_event(*on_device);

  std::unique_lock lock(mutex);
  check_generation(caller_generation);
  RankState& state = *ranks[static_cast<size_t>(rank)];
  state.called = true;
  state.last_line = arrival.line;
  ++state.call_count;
  throw_if_failed(rank);
  std::shared_ptr<Meeting>& slot = group.open[key];
  if (!slot) {
    slot = std::make_shared<Meeting>();
    const size_t count = members->size();
    slot->members = std::move(members);
    slot->lines.resize(count);
    slot->tensors.resize(count);
    slot->arrived.resize(count, false);
    slot->issued_us.resize(count, 0);
    slot->motion = arrival.motion;
    slot->op = arrival.op;
    slot->root = arrival.root;
  }
  check_agreement(*slot, arrival);
  const std::shared_ptr<Meeting> meeting = slot;
  meeting->lines[arrival.position] = std::move(arrival.line);
  meeting->tensors[arrival.position] = std::move(arrival.tensors);
  meeting->arrived[arrival.position] = true;
  meeting->issued_us[arrival.position] = arrival.issued_us.value_or(0);
  meeting->timed = meeting->timed && arrival.issued_us.has_value();
  if (ready) meeting->ready.push_back(std::move(*ready));
  if (++meeting->arrived_count < static_cast<int64_t>(meeting->members->size())) return meeting;

  group.open.erase(key);
  meeting->state = Meeting::State::kCarryingOut;
  start_transfer(group, key, meeting);
  lock.unlock();
  std::string problem;
  try {
    carry_out_meeting(*meeting);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  lock.lock();
  const std::vector<int64_t> sleepers = finish(*meeting);
  if (!problem.empty()) {
    fail({.code = "threw",
          .message = "rank " + std::to_string(rank) + " could not carry out " +
                     describe_line(meeting->lines[0]) + ": " + problem,
          .ranks = {rank}});
  }
  lock.unlock();
  for (const int64_t sleeper : sleepers) slots.wake(sleeper);
  if (!problem.empty()) {
    lock.lock();
    throw_if_failed(rank);
  }
  return meeting;
}

Member EmulatedWorld::Impl::wait(const std::shared_ptr<Meeting>& meeting, int64_t rank,
                                 size_t position, int64_t caller_generation) {
  std::unique_lock lock(mutex);
  check_generation(caller_generation);
  RankState& state = *ranks[static_cast<size_t>(rank)];
  if (meeting->state != Meeting::State::kDone) {
    if (meeting->state != Meeting::State::kCarryingOut) throw_if_failed(rank);
    state.blocked_on = meeting;
    ++blocked;
    meeting->sleepers.push_back(rank);
    check_peers(*meeting, rank);
    check_deadlock();
    lock.unlock();
    slots.sleep(rank);
    lock.lock();
    check_generation(caller_generation);
    if (meeting->state != Meeting::State::kDone) throw_if_failed(rank);
  }
  if (meeting->done) make_stream_wait(*meeting->done, meeting->device);
  return std::move(meeting->tensors[position]);
}

bool EmulatedWorld::Impl::is_done(const Meeting& meeting) const {
  const std::lock_guard lock(mutex);
  return meeting.state == Meeting::State::kTravelling || meeting.state == Meeting::State::kDone;
}

// A member that has ended will never come.
void EmulatedWorld::Impl::check_peers(const Meeting& meeting, int64_t rank) {
  if (ended == 0 || meeting.state != Meeting::State::kGathering) return;
  for (const int64_t member : missing_members(meeting)) {
    if (!ranks[static_cast<size_t>(member)]->ended) continue;
    fail({.code = "deadlock",
          .message =
              "rank " + std::to_string(member) + " has ended; " + describe_wait(meeting, rank),
          .ranks = {std::min(rank, member), std::max(rank, member)}});
    return;
  }
}

void EmulatedWorld::Impl::check_deadlock() {
  if (failure || blocked == 0) return;
  let_transfers_end();
  if (blocked > 0 && all_sleep()) fail(describe_deadlock(ranks));
}

void EmulatedWorld::Impl::check_leftovers() {
  if (failure || ended != static_cast<int64_t>(ranks.size())) return;
  for (const auto& [key, group] : groups) {
    if (group->open.empty()) continue;
    const Meeting& meeting = *group->open.begin()->second;
    const auto first = std::find(meeting.arrived.begin(), meeting.arrived.end(), true);
    const CallLine& line = meeting.lines[static_cast<size_t>(first - meeting.arrived.begin())];
    fail({.code = "never_waited",
          .message = "all ranks have ended, but " + ranks_text(missing_members(meeting)) +
                     " never entered " + describe_line(line) + " (call " +
                     std::to_string(line.sequence) + "), which rank " + std::to_string(line.rank) +
                     " started and never waited for",
          .ranks = {line.rank}});
    return;
  }
}

void EmulatedWorld::Impl::end_rank(int64_t rank) {
  RankState& state = *ranks[static_cast<size_t>(rank)];
  SHARDPROOF_ASSERT(!state.ended, "a rank ends once");
  state.ended = true;
  ++ended;
  slots.leave(rank);
  if (failure) return;
  if (auto leftover = state.in_flight.leftover()) return fail(std::move(*leftover));
  for (size_t other = 0; other < ranks.size(); ++other) {
    if (ranks[other]->blocked_on)
      check_peers(*ranks[other]->blocked_on, static_cast<int64_t>(other));
    if (failure) return;
  }
  check_deadlock();
  check_leftovers();
}

std::shared_ptr<EmulatedGroup> EmulatedWorld::Impl::join_group(const std::string& name,
                                                               const std::vector<int64_t>& members,
                                                               int64_t rank) {
  const std::lock_guard lock(mutex);
  RankState& state = *ranks[static_cast<size_t>(rank)];
  const int64_t count = state.group_count[group_key(name, members, 0)]++;
  std::shared_ptr<EmulatedGroup>& group = groups[group_key(name, members, count)];
  if (!group) {
    group = std::make_shared<EmulatedGroup>();
    group->name = name;
    group->ranks = std::make_shared<const std::vector<int64_t>>(members);
  }
  return group;
}

}  // namespace shardproof::sim
