// Members meet, sleep, wake and fail.
#include "sim/world/emulated/world_state.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <thread>

namespace shardproof::sim::world {
namespace {

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

// At least two, so that a rank that hangs leaves a slot to the others.
int64_t slot_count() { return std::max<int64_t>(2, std::thread::hardware_concurrency()); }

}  // namespace

EmulatedWorld::Impl::Impl(int64_t size)
    : slots(size, slot_count()), world_size(size), matcher(size) {
  make_ranks();
}

void EmulatedWorld::Impl::make_ranks() {
  ranks.clear();
  for (int64_t rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::make_unique<RankState>());
    ranks.back()->clock = RankClock(spec, rank);
  }
}

Error EmulatedWorld::Impl::error_for(int64_t rank) const {
  const std::vector<int64_t>& named = failure->ranks;
  if (std::find(named.begin(), named.end(), rank) != named.end()) {
    return Error({.kind = ErrorKind::kFailed,
                  .what = failure->message,
                  .fix = failure->fix,
                  .code = failure->code});
  }
  const std::string cause = named.empty() ? failure->message
                                          : "ended because rank " + std::to_string(named.front()) +
                                                " ended as " + failure->code;
  return Error({.kind = ErrorKind::kFailed,
                .what = matcher.consequence(rank, cause),
                .fix = "",
                .code = "aborted"});
}

void EmulatedWorld::Impl::stop(int64_t rank, Finding why) {
  const Lock lock(mutex);
  fail(std::move(why));
  throw error_for(rank);
}

void EmulatedWorld::Impl::throw_if_failed(int64_t rank) const {
  if (failure) throw error_for(rank);
}

void EmulatedWorld::Impl::check_generation(int64_t expected) const {
  if (expected == generation) return;
  throw_failed("a call on a communicator of an earlier case of this world",
               "make the communicators anew for each case", "aborted");
}

void EmulatedWorld::Impl::fail_by(std::optional<Finding> finding) {
  if (finding) fail(std::move(*finding));
}

void EmulatedWorld::Impl::fail(Finding first) {
  if (failure) return;
  failure = std::move(first);
  ready_.clear();
  slots.open();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::shared_ptr<Meeting>& meeting = ranks[rank]->blocked_on;
    if (!meeting || meeting->state == Meeting::State::kCarryingOut) continue;
    meeting = nullptr;
    --blocked;
    slots.wake(static_cast<int64_t>(rank));
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
  carry_out(meeting.op, meeting.reduce, meeting.root, members);
  if (on_device == nullptr) return;
  meeting.done = record_event(*on_device);
  meeting.device = on_device->device();
}

std::shared_ptr<Meeting> EmulatedWorld::Impl::arrive(
    EmulatedGroup& group, const EmulatedGroup::Channel& channel,
    std::shared_ptr<const std::vector<int64_t>> members, Arrival arrival,
    int64_t caller_generation) {
  const int64_t rank = arrival.line.rank;
  const at::Tensor* on_device = any_device_tensor(arrival.tensors);
  std::optional<c10::Event> ready;
  if (on_device != nullptr) ready = record_event(*on_device);

  Lock lock(mutex);
  check_generation(caller_generation);
  RankState& state = *ranks[static_cast<size_t>(rank)];
  ++state.call_count;
  const Op op = arrival.line.op;
  const int64_t root = arrival.line.root;
  const bool asynchronous = arrival.line.asynchronous;
  fail_by(matcher.line({std::move(arrival.line)}));
  throw_if_failed(rank);
  const int64_t number = matcher.entered(rank);
  std::shared_ptr<Meeting>& slot = open[number];
  if (!slot) {
    slot = std::make_shared<Meeting>();
    const size_t count = members->size();
    slot->members = std::move(members);
    slot->tensors.resize(count);
    slot->issued_us.resize(count, 0);
    slot->op = op;
    slot->reduce = arrival.reduce;
    slot->root = root;
  }
  const std::shared_ptr<Meeting> meeting = slot;
  if (exact) note_arrival(meeting, rank, arrival.tensors);
  meeting->tensors[arrival.position] = std::move(arrival.tensors);
  meeting->issued_us[arrival.position] = arrival.issued_us.value_or(0);
  meeting->timed = meeting->timed && arrival.issued_us.has_value();
  if (ready) meeting->ready.push_back(std::move(*ready));
  if (++meeting->arrived_count == static_cast<int64_t>(meeting->members->size())) {
    open.erase(number);
    meeting->last_rank = rank;
    start_transfer(group, channel, meeting);
    if (has_schedule()) {
      make_ready(meeting);
    } else {
      take_effect(meeting, rank);
    }
  }
  lock.unlock();
  if (exact) {
    exact_turn(rank, asynchronous ? nullptr : meeting);
  } else {
    turn(rank);
  }
  return meeting;
}

void EmulatedWorld::Impl::take_effect(const std::shared_ptr<Meeting>& meeting, int64_t rank) {
  meeting->state = Meeting::State::kCarryingOut;
  mutex.unlock();
  std::string problem;
  try {
    carry_out_meeting(*meeting);
  } catch (const std::exception& error) {
    problem = error.what();
  }
  mutex.lock();
  const std::vector<int64_t> sleepers = finish(*meeting);
  if (!problem.empty()) {
    const int64_t last = meeting->last_rank;
    const std::string& call = meeting->last_call;
    fail({.code = "threw",
          .message = "rank " + std::to_string(last) + " could not carry out " +
                     (call.empty() ? matcher.last_call(last) : call) + ": " + problem,
          .ranks = {last},
          .fix = "look at what that rank threw"});
  }
  mutex.unlock();
  for (const int64_t sleeper : sleepers) slots.wake(sleeper);
  mutex.lock();
  if (!problem.empty()) throw_if_failed(rank);
}

Member EmulatedWorld::Impl::wait(const std::shared_ptr<Meeting>& meeting, std::optional<Call> line,
                                 int64_t rank, size_t position, int64_t caller_generation) {
  if (line && !exact) turn(rank);
  Lock lock(mutex);
  check_generation(caller_generation);
  RankState& state = *ranks[static_cast<size_t>(rank)];
  if (line) {
    fail_by(matcher.line({std::move(*line), true}));
  }
  if (line && exact) {
    lock.unlock();
    exact_turn(rank, meeting);
    lock.lock();
  }
  while (meeting->state != Meeting::State::kDone) {
    if (meeting->state != Meeting::State::kCarryingOut) throw_if_failed(rank);
    if (meeting->state == Meeting::State::kReady) {
      std::erase(ready_, meeting);
      take_effect(meeting, rank);
      continue;
    }
    state.blocked_on = meeting;
    ++blocked;
    meeting->sleepers.push_back(rank);
    let_transfers_end();
    lock.unlock();
    slots.sleep(rank);
    lock.lock();
    check_generation(caller_generation);
  }
  if (meeting->done) make_stream_wait(*meeting->done, meeting->device);
  return std::move(meeting->tensors[position]);
}

void EmulatedWorld::Impl::end_rank(int64_t rank) {
  RankState& state = *ranks[static_cast<size_t>(rank)];
  SHARDPROOF_ASSERT(!state.ended, "a rank ends once");
  state.ended = true;
  ++ended;
  try {
    if (exact) choose_next(rank);
  } catch (const std::exception& error) {  // of another rank's call, which now takes effect
    fail({.code = "threw",
          .message = "when rank " + std::to_string(rank) + " had ended: " + error.what(),
          .ranks = {},
          .fix = "look at the call that came next"});
  }
  slots.leave(rank);
  if (failure) return;
  fail_by(matcher.ended(rank));
  let_transfers_end();
}

std::shared_ptr<EmulatedGroup> EmulatedWorld::Impl::join_group(
    const std::string& name, const std::vector<int64_t>& members) {
  const Lock lock(mutex);
  std::shared_ptr<EmulatedGroup>& group = groups[name + list_text(members)];
  if (!group) {
    group = std::make_shared<EmulatedGroup>();
    group->name = group_name(name, members);
    group->ranks = std::make_shared<const std::vector<int64_t>>(members);
  }
  return group;
}

}  // namespace shardproof::sim::world
