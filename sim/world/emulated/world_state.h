// The state of an emulated world: groups, meetings of their members, and ranks.
#pragma once

#include <c10/core/Event.h>

#include <atomic>
#include <map>
#include <mutex>
#include <random>
#include <tuple>

#include "base/error.h"
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
  void set_schedule();  // of the spec
  // With an exact schedule: the same; the rank goes on when `after` has taken effect.
  void exact_turn(int64_t rank, std::shared_ptr<Meeting> after, bool polls = false);
  void check_generation(int64_t generation) const;
  std::shared_ptr<EmulatedGroup> join_group(const std::string& name,
                                            const std::vector<int64_t>& ranks);
  void end_rank(int64_t rank, std::unique_lock<std::mutex>& lock);  // of the mutex
  void fail(Finding failure);  // keeps the first one and wakes all ranks; the mutex is held
  // Called on the rank's thread: the world fails because of its call.
  [[noreturn]] void stop(int64_t rank, Finding failure);
  void make_ranks();        // replaces all states; clocks are at 0
  void forget_transfers();  // drops transfers without a wait

  RunSlots slots;  // where rank threads sleep
  const int64_t world_size;
  WorldSpec spec;  // as configured
  LinkCost links;
  LinkTraffic traffic;
  mutable std::mutex mutex;
  std::vector<std::unique_ptr<RankState>> ranks;
  std::map<std::string, std::shared_ptr<EmulatedGroup>> groups;
  std::map<int64_t, std::shared_ptr<Meeting>> open;  // by the matcher's number of the call
  Matcher matcher;
  int64_t blocked = 0;
  int64_t ended = 0;
  std::atomic<int64_t> generation = 0;  // counts cases, so that older backends cannot be used
  std::optional<Finding> failure;
  std::optional<ExactSchedule> exact;

 private:
  void carry_out_meeting(Meeting& meeting);
  // Carries out a meeting on this rank's thread, and wakes its members. The lock is held before and
  // after.
  void take_effect(const std::shared_ptr<Meeting>& meeting, int64_t rank,
                   std::unique_lock<std::mutex>& lock);
  void make_ready(const std::shared_ptr<Meeting>& meeting);  // with a schedule
  // With an exact schedule: a member comes, and what happens until the next rank runs.
  void note_arrival(const std::shared_ptr<Meeting>& meeting, int64_t rank, const Member& tensors);
  void choose_next(int64_t rank, std::unique_lock<std::mutex>& lock);
  std::vector<ScheduleStep> steps() const;
  bool goes_first(int64_t rank) const;
  bool goes_first(const Meeting& meeting) const;
  void start_transfer(EmulatedGroup& group, const EmulatedGroup::Channel& channel,
                      const std::shared_ptr<Meeting>& meeting);
  std::vector<int64_t> finish(Meeting& meeting);   // returns the ranks to wake
  std::vector<int64_t> release(Meeting& meeting);  // returns the ranks to wake
  std::vector<int64_t> unblock(Meeting& meeting);  // returns the ranks to wake
  bool all_sleep() const { return blocked + ended == static_cast<int64_t>(ranks.size()); }
  void let_transfers_end();
  void fail_by(std::optional<Finding> finding);
  void throw_if_failed(int64_t rank) const;
  Error error_for(int64_t rank) const;  // the failure for this rank

  std::map<int64_t, std::shared_ptr<Meeting>> travelling_;  // by the transfer's number
  std::vector<std::shared_ptr<Meeting>> ready_;             // with a schedule
  std::mt19937_64 schedule_;
  // With an exact schedule: those that have not taken effect.
  std::vector<std::shared_ptr<Meeting>> pending_;
  int64_t meetings_ = 0;
  int64_t channel_count_ = 0;
};

}  // namespace shardproof::sim::world
