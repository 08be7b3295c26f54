// The state of an emulated world: groups, meetings of their members, and ranks.
#pragma once

#include <c10/core/Event.h>

#include <atomic>
#include <map>
#include <random>
#include <tuple>

#include "base/error.h"
#include "base/mutex.h"
#include "sim/world/clock/link_cost.h"
#include "sim/world/clock/link_traffic.h"
#include "sim/world/clock/rank_clock.h"
#include "sim/world/emulated/collective_math.h"
#include "sim/world/emulated/emulated_world.h"
#include "sim/world/emulated/exact_schedule.h"
#include "sim/world/emulated/in_flight.h"
#include "sim/world/emulated/run_slots.h"
#include "sim/world/match/matcher.h"

namespace shardproof::sim::world {

// The meeting of the members of one collective call or message.
struct Meeting {
  // kReady: all members have come; with a schedule it takes effect later.
  // kTravelling: the tensors are there, but the end of the transfer is not yet known.
  enum class State { kGathering, kReady, kCarryingOut, kTravelling, kDone };

  std::shared_ptr<const std::vector<int64_t>> members;  // global ranks
  std::vector<Member> tensors;
  int64_t arrived_count = 0;
  Op op = Op::kBarrier;
  ReduceOp reduce = ReduceOp::kSum;
  int64_t root = -1;
  State state = State::kGathering;
  std::vector<double> issued_us;    // of each member, on its clock
  bool timed = true;                // the clocks of all members that arrived run
  TransferTime transfer;            // known when the meeting is done
  bool travels = false;             // other transfers may delay the end of its own
  std::vector<int64_t> sleepers;    // members that sleep here
  int64_t last_rank = -1;           // that came last
  std::string last_call;            // kReady: its call
  int64_t turns_left = 0;           // kReady: until it takes effect unasked; -1: at a wait
  int64_t number = 0;               // with an exact schedule, of those before it
  std::vector<int64_t> arrived;     // with an exact schedule: members that have come
  std::vector<MemoryRange> memory;  // with an exact schedule: of the members that have come
  std::vector<c10::Event> ready;    // CUDA: after the kernels that make a member's input
  std::optional<c10::Event> done;   // CUDA: after this operation's kernels
  c10::Device device = c10::Device(c10::kCPU);
};

// One member's part of a meeting.
struct Arrival {
  Call line;
  Member tensors;
  ReduceOp reduce = ReduceOp::kSum;      // of the tensors as they travel: bool has no sum
  size_t position = 0;                   // among the meeting's members
  std::optional<double> issued_us = {};  // none: its clock does not run
};

struct EmulatedGroup {
  // (from, to, tag); for collectives, from and to are -1.
  using Channel = std::tuple<int64_t, int64_t, int64_t>;

  std::string name;
  std::shared_ptr<const std::vector<int64_t>> ranks;
  struct ChannelState {  // of a channel, whose transfers run one after another
    int64_t number = 0;
    double busy_until_us = 0;
  };
  std::map<Channel, ChannelState> channels;
};

struct RankState {
  std::shared_ptr<Meeting> blocked_on;  // null while it runs
  bool ended = false;
  int64_t call_count = 0;
  // With an exact schedule: what must have taken effect before it goes on, and whether it asks
  // again and again.
  std::shared_ptr<Meeting> goes_on_after;
  bool polls = false;
  // Accessed by the rank's own thread only:
  RankClock clock;
  InFlight in_flight;
};

struct EmulatedWorld::Impl {
  explicit Impl(int64_t world_size);

  // Joins the meeting of a call, as the matcher numbers it; the last member runs the operation and
  // wakes the others. Sleeps only under a schedule, until the rank's next turn. Throws
  // Error(kFailed) when the world has failed, or fails by this call.
  std::shared_ptr<Meeting> arrive(EmulatedGroup& group, const EmulatedGroup::Channel& channel,
                                  std::shared_ptr<const std::vector<int64_t>> members,
                                  Arrival arrival, int64_t generation);
  // Sleeps until the meeting is done. `line` is an asynchronous call whose wait begins now. Throws
  // Error(kFailed) when the world fails first. Returns the rank's own tensors, so that they are
  // freed on its thread.
  Member wait(const std::shared_ptr<Meeting>& meeting, std::optional<Call> line, int64_t rank,
              size_t position, int64_t generation);
  bool is_done(const std::shared_ptr<Meeting>& meeting, int64_t rank);
  // With a schedule: a rank is between two calls, so that calls may take effect and others run.
  void turn(int64_t rank);
  bool has_schedule() const { return spec.schedule != 0; }
  void set_schedule() SHARDPROOF_REQUIRES(mutex);  // of the spec
  // With an exact schedule: the same; the rank goes on when `after` has taken effect.
  void exact_turn(int64_t rank, std::shared_ptr<Meeting> after, bool polls = false);
  void check_generation(int64_t generation) const;
  std::shared_ptr<EmulatedGroup> join_group(const std::string& name,
                                            const std::vector<int64_t>& ranks);
  // Some of the functions that need the mutex release it for a time, and lock it again.
  void end_rank(int64_t rank) SHARDPROOF_REQUIRES(mutex);
  void fail(Finding failure) SHARDPROOF_REQUIRES(mutex);  // keeps the first one and wakes all ranks
  // Called on the rank's thread: the world fails because of its call.
  [[noreturn]] void stop(int64_t rank, Finding failure);
  void make_ranks();                                   // replaces all states; clocks are at 0
  void forget_transfers() SHARDPROOF_REQUIRES(mutex);  // drops transfers without a wait

  RunSlots slots;  // where rank threads sleep
  const int64_t world_size;
  WorldSpec spec;  // as configured
  LinkCost links;
  LinkTraffic traffic;
  mutable Mutex mutex;
  std::vector<std::unique_ptr<RankState>> ranks;
  std::map<std::string, std::shared_ptr<EmulatedGroup>> groups SHARDPROOF_GUARDED_BY(mutex);
  // By the matcher's number of the call.
  std::map<int64_t, std::shared_ptr<Meeting>> open SHARDPROOF_GUARDED_BY(mutex);
  Matcher matcher SHARDPROOF_GUARDED_BY(mutex);
  int64_t blocked SHARDPROOF_GUARDED_BY(mutex) = 0;
  int64_t ended SHARDPROOF_GUARDED_BY(mutex) = 0;
  std::atomic<int64_t> generation = 0;  // counts cases, so that older backends cannot be used
  std::optional<Finding> failure SHARDPROOF_GUARDED_BY(mutex);
  std::optional<ExactSchedule> exact;

 private:
  void carry_out_meeting(Meeting& meeting);
  // Carries out a meeting on this rank's thread, and wakes its members.
  void take_effect(const std::shared_ptr<Meeting>& meeting, int64_t rank)
      SHARDPROOF_REQUIRES(mutex);
  void make_ready(const std::shared_ptr<Meeting>& meeting)
      SHARDPROOF_REQUIRES(mutex);  // with a schedule
  // With an exact schedule: a member comes, and what happens until the next rank runs.
  void note_arrival(const std::shared_ptr<Meeting>& meeting, int64_t rank, const Member& tensors)
      SHARDPROOF_REQUIRES(mutex);
  void choose_next(int64_t rank) SHARDPROOF_REQUIRES(mutex);
  std::vector<ScheduleStep> steps() const SHARDPROOF_REQUIRES(mutex);
  bool goes_first(int64_t rank) const SHARDPROOF_REQUIRES(mutex);
  bool goes_first(const Meeting& meeting) const SHARDPROOF_REQUIRES(mutex);
  void start_transfer(EmulatedGroup& group, const EmulatedGroup::Channel& channel,
                      const std::shared_ptr<Meeting>& meeting) SHARDPROOF_REQUIRES(mutex);
  // These return the ranks to wake.
  std::vector<int64_t> finish(Meeting& meeting) SHARDPROOF_REQUIRES(mutex);
  std::vector<int64_t> release(Meeting& meeting) SHARDPROOF_REQUIRES(mutex);
  std::vector<int64_t> unblock(Meeting& meeting) SHARDPROOF_REQUIRES(mutex);
  bool all_sleep() const SHARDPROOF_REQUIRES(mutex) { return blocked + ended == std::ssize(ranks); }
  void let_transfers_end() SHARDPROOF_REQUIRES(mutex);
  void fail_by(std::optional<Finding> finding) SHARDPROOF_REQUIRES(mutex);
  void throw_if_failed(int64_t rank) const SHARDPROOF_REQUIRES(mutex);
  Error error_for(int64_t rank) const SHARDPROOF_REQUIRES(mutex);  // the failure for this rank

  // By the transfer's number.
  std::map<int64_t, std::shared_ptr<Meeting>> travelling_ SHARDPROOF_GUARDED_BY(mutex);
  std::vector<std::shared_ptr<Meeting>> ready_ SHARDPROOF_GUARDED_BY(mutex);  // with a schedule
  std::mt19937_64 schedule_ SHARDPROOF_GUARDED_BY(mutex);
  // With an exact schedule: those that have not taken effect.
  std::vector<std::shared_ptr<Meeting>> pending_ SHARDPROOF_GUARDED_BY(mutex);
  int64_t meetings_ SHARDPROOF_GUARDED_BY(mutex) = 0;
  int64_t channel_count_ SHARDPROOF_GUARDED_BY(mutex) = 0;
};

}  // namespace shardproof::sim::world
