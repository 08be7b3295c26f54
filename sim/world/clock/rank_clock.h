// The virtual clock of one emulated rank, which computation and waiting for calls advance.
//
//   issued   the rank makes the call            ready   the last member has made it
//   begin    its transfer begins: at `ready`, or when the group's previous call has ended
//   end      its transfer has ended, for all members
//
//   A synchronous call blocks from `issued`, an asynchronous one from its wait(), until `end`. The
//   part before `ready` is waiting for the slowest member, the rest is exposed communication.
//   Computation hides a transfer that ends before wait().
//
//   compute + waiting + exposed = the rank's time
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/case/stretch.h"
#include "sim/case/world_spec.h"
#include "sim/world/clock/op_meter.h"

namespace shardproof::sim::world {

// The times of a call's transfer, equal on all members.
struct TransferTime {
  bool timed = false;  // false: some member's clock did not run, so the transfer takes no time
  double ready_us = 0, begin_us = 0, end_us = 0;
  int64_t last_rank = -1;  // the member that made the call last; if there are several, the lowest
};

struct TimedCall {
  std::string name;   // "all_reduce(sum) tp[0,1] [4] float64 'label'"
  std::string group;  // the channel, whose transfers run one after another
  bool waited = false;
  double blocked_from_us = 0;
  TransferTime transfer;
};

// Belongs to its rank's thread.
class RankClock {
 public:
  RankClock() = default;
  RankClock(const WorldSpec& world, int64_t rank);

  // Starts at 0 with an empty record. Calls before start() and after stop() take no time.
  void start();
  void stop();
  bool running() const { return running_; }
  // While the clock is paused, work of the harness on the rank's thread takes no time.
  void pause();
  void resume();
  void advance(double compute_us);  // adds computation

  // Called by the world: the rank has made a call, blocks in one, or was released from it.
  double now_us() const { return now_us_; }
  size_t issued(std::string name, std::string group);
  void blocks(size_t call);
  void released(size_t call, const TransferTime& transfer);

  // Begins or ends an action of a stage, "B3.1" (microbatch 3 in chunk 1) of a step.
  void act(const std::string& name, int64_t step, bool begins);

  // In virtual time: computing, waiting, exposed time and transfers, in the order in which the rank
  // waited for the calls. Then the actions.
  std::vector<Stretch> timeline() const;

 private:
  void settle();  // adds the computation since the mark
  void mark();

  bool fixed_ = false;
  double factor_ = 1;
  double op_us_ = 0, gflop_per_s_ = 0;
  std::unique_ptr<OpMeter> meter_;
  bool running_ = false;
  int paused_ = 0;
  double cpu_mark_us_ = 0;
  double now_us_ = 0;
  std::vector<TimedCall> calls_;
  struct Acted {
    std::string name;
    int64_t step = 0;
    double from_us = 0, to_us = 0;
  };
  std::vector<Acted> actions_;
};

// Calls `Begin` of a clock, and at the end of its scope, on the same thread, `End`. Null: nothing.
template <void (RankClock::*Begin)(), void (RankClock::*End)()>
class ClockScope {
 public:
  explicit ClockScope(RankClock* clock) : clock_(clock) {
    if (clock_ != nullptr) (clock_->*Begin)();
  }
  ~ClockScope() {
    if (clock_ != nullptr) (clock_->*End)();
  }
  ClockScope(const ClockScope&) = delete;
  ClockScope& operator=(const ClockScope&) = delete;

 private:
  RankClock* clock_;
};
using ClockRun = ClockScope<&RankClock::start, &RankClock::stop>;
using ClockPause = ClockScope<&RankClock::pause, &RankClock::resume>;

}  // namespace shardproof::sim::world
