// The virtual clock of one emulated rank: computing moves it on, and so does waiting for a call.
//
//   issued   the rank makes the call            ready   the last member has made it
//   begin    its transfer begins: at `ready`, or when the group's call before it is done
//   end      its transfer is over, for all members
//
//   a synchronous call blocks from `issued`, an asynchronous one from its wait(), until `end`. What
//   of it lies before `ready` is waiting for the slowest member, the rest is exposed
//   communication. A transfer that is over when wait() comes was hidden behind computing.
//
//   compute + waiting + exposed = the rank's time
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sim/case/world_spec.h"
#include "sim/world/clock/op_meter.h"

namespace shardproof::sim {

// When a call was made by all and when it moved its bytes; all members agree on it.
struct TransferTime {
  bool timed = false;  // false: some member's clock did not run; it takes no time
  double ready_us = 0, begin_us = 0, end_us = 0;
  int64_t last_rank = -1;  // the member that came last; of equals the lowest
};

struct TimedCall {
  std::string name;   // "all_reduce(sum) tp[0,1] [4] float64 'label'"
  std::string group;  // the channel: transfers of one follow each other
  bool asynchronous = false;
  double issued_us = 0;
  bool waited = false;
  double blocked_from_us = 0;
  TransferTime transfer;
};

// Lives on its rank's thread.
class RankClock {
 public:
  RankClock() = default;
  RankClock(const WorldSpec& world, int64_t rank);

  // From 0, with nothing on record. Calls before it, and after stop(), take no time.
  void start();
  void stop();
  bool running() const { return running_; }
  // What the harness does on the rank's thread in between takes no time.
  void pause();
  void resume();
  void advance(double compute_us);  // as if it had computed

  // For the world: the rank enters a call (and pauses), it made a call, it was released from one.
  double now_us() const { return now_us_; }
  size_t issued(std::string name, std::string group, bool asynchronous);
  void blocks(size_t call);
  void released(size_t call, const TransferTime& transfer);

  // In the order of the calls. Those that were not waited for have no transfer.
  const std::vector<TimedCall>& calls() const { return calls_; }
  // Entries of RankReport::timeline: {"name", "start_us", "duration_us", "kind", "virtual": true},
  // kind compute, waiting, exposed, or communication: the transfer itself, with "group",
  // "issued_us", "ready_us", "blocked_from_us", "last_rank".
  std::vector<nlohmann::json> timeline() const;

 private:
  void settle();  // adds what was computed since the mark
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
};

// Runs while it lives, and is stopped on the thread that started it, however the scope is left.
class ClockRun {
 public:
  explicit ClockRun(RankClock* clock) : clock_(clock) {
    if (clock_ != nullptr) clock_->start();
  }
  ~ClockRun() {
    if (clock_ != nullptr) clock_->stop();
  }
  ClockRun(const ClockRun&) = delete;
  ClockRun& operator=(const ClockRun&) = delete;

 private:
  RankClock* clock_;
};

// Pauses while it lives. Null: nothing.
class ClockPause {
 public:
  explicit ClockPause(RankClock* clock) : clock_(clock) {
    if (clock_ != nullptr) clock_->pause();
  }
  ~ClockPause() {
    if (clock_ != nullptr) clock_->resume();
  }
  ClockPause(const ClockPause&) = delete;
  ClockPause& operator=(const ClockPause&) = delete;

 private:
  RankClock* clock_;
};

}  // namespace shardproof::sim
