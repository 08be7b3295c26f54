// The inside of an emulated world: groups, meetings of their members, and the state of each rank.
#pragma once

#include <c10/core/Event.h>

#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <tuple>

#include "sim/world/clock/link_cost.h"
#include "sim/world/clock/link_traffic.h"
#include "sim/world/clock/rank_clock.h"
#include "sim/world/emulated/collective_math.h"
#include "sim/world/emulated/emulated_world.h"
#include "sim/world/emulated/in_flight.h"
#include "sim/world/emulated/run_slots.h"
#include "sim/world/match/call_line.h"

namespace shardproof::sim {

// One collective call (or one message) of a group: the place where its members arrive.
struct Meeting {
  // Travelling: the tensors are there, but when its transfer ends is not known yet.
  enum class State { kGathering, kCarryingOut, kTravelling, kDone };

  std::shared_ptr<const std::vector<int64_t>> members;  // global ranks
  std::vector<CallLine> lines;                          // of those that arrived
  std::vector<Member> tensors;
  std::vector<bool> arrived;
  int64_t arrived_count = 0;
  Motion motion = Motion::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  int64_t root = -1;
  State state = State::kGathering;
  std::vector<double> issued_us;   // per member, on its clock
  bool timed = true;               // the clock of every member that arrived runs
  TransferTime transfer;           // once done
  bool travels = false;            // its transfer's end depends on what else uses the links
  std::vector<int64_t> sleepers;   // members blocked here
  std::vector<c10::Event> ready;   // CUDA: after the kernels that made a member's input
  std::optional<c10::Event> done;  // CUDA: after this operation's kernels
  c10::Device device = c10::Device(c10::kCPU);
};

// What one member brings.
struct Arrival {
  CallLine line;
  Member tensors;
  Motion motion = Motion::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  int64_t root = -1;
  size_t position = 0;                   // in the meeting's members
  std::optional<double> issued_us = {};  // none: its clock does not run
};

struct EmulatedGroup {
  // (from, to, tag, call number); from and to are -1 for collectives.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t>;
  using Channel = std::tuple<int64_t, int64_t, int64_t>;  // a Key without the number

  std::string name;
  std::shared_ptr<const std::vector<int64_t>> ranks;
  std::map<Key, std::shared_ptr<Meeting>> open;
  struct ChannelState {  // its transfers follow each other
    int64_t number = 0;
    double busy_until_us = 0;
  };
  std::map<Channel, ChannelState> channels;
};

struct RankState {
  std::shared_ptr<Meeting> blocked_on;  // null while it runs
  bool ended = false;
  bool called = false;
  CallLine last_line;
  int64_t call_count = 0;
  std::map<std::string, int64_t> group_count;  // how often it made each group
  // Touched by the rank's own thread only:
  RankClock clock;
  InFlight in_flight;
};

struct EmulatedWorld::Impl {
  explicit Impl(int64_t world_size);

  // Joins the meeting `key` of the group; the last member carries the operation out and wakes the
  // others. Never sleeps. Throws Error(kFailed) when the world has failed or this call makes it
  // fail.
  std::shared_ptr<Meeting> arrive(EmulatedGroup& group, const EmulatedGroup::Key& key,
                                  std::shared_ptr<const std::vector<int64_t>> members,
                                  Arrival arrival, int64_t generation);
  // Sleeps until the meeting is done. Throws Error(kFailed) when the world fails first.
  // Gives back the rank's own tensors, so that they are freed on the thread that made them.
  Member wait(const std::shared_ptr<Meeting>& meeting, int64_t rank, size_t position,
              int64_t generation);
  bool is_done(const Meeting& meeting) const;
  void check_generation(int64_t generation) const;
  std::shared_ptr<EmulatedGroup> join_group(const std::string& name,
                                            const std::vector<int64_t>& ranks, int64_t rank);
  void end_rank(int64_t rank);
  void fail(WorldFailure failure);  // the first one counts; wakes everybody; mutex held
  // From the rank's own thread: the world fails because of what it did.
  [[noreturn]] void stop(int64_t rank, WorldFailure failure);
  void make_ranks();        // anew, with clocks at 0
  void forget_transfers();  // those that nobody waited for

  RunSlots slots;  // where rank threads sleep
  const int64_t world_size;
  WorldSpec spec;  // as configured
  LinkCost links;
  LinkTraffic traffic;
  mutable std::mutex mutex;
  std::vector<std::unique_ptr<RankState>> ranks;
  std::map<std::string, std::shared_ptr<EmulatedGroup>> groups;
  int64_t blocked = 0;
  int64_t ended = 0;
  std::atomic<int64_t> generation = 0;  // of the case; reset() makes older backends unusable
  std::optional<WorldFailure> failure;

 private:
  void check_agreement(const Meeting& meeting, const Arrival& arrival);
  void carry_out_meeting(Meeting& meeting);
  void start_transfer(EmulatedGroup& group, const EmulatedGroup::Key& key,
                      const std::shared_ptr<Meeting>& meeting);
  std::vector<int64_t> finish(Meeting& meeting);   // whom to wake
  std::vector<int64_t> release(Meeting& meeting);  // whom to wake
  bool all_sleep() const { return blocked + ended == static_cast<int64_t>(ranks.size()); }
  void let_transfers_end();
  void check_peers(const Meeting& meeting, int64_t rank);
  void check_deadlock();
  void check_leftovers();
  void throw_if_failed(int64_t rank) const;

  std::map<int64_t, std::shared_ptr<Meeting>> travelling_;  // by the transfer's number
  int64_t channel_count_ = 0;
};

// "rank 0 waits for ranks 1, 2 in all_reduce(sum) tp[0,1,2] [4] float64 'label' (call 3)"
std::string describe_wait(const Meeting& meeting, int64_t rank);
// Why nobody can go on: the cycle of waits, first; then how many others wait.
WorldFailure describe_deadlock(const std::vector<std::unique_ptr<RankState>>& ranks);
std::vector<int64_t> missing_members(const Meeting& meeting);
std::string ranks_text(const std::vector<int64_t>& ranks);  // "rank 1", "ranks 1, 2 and 5 more"

}  // namespace shardproof::sim
