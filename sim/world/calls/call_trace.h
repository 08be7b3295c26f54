// Records every call of one rank: its text, its time on the wall clock, and counts.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "sim/case/stretch.h"

namespace shardproof::sim::world {

// Belongs to one rank's thread. `forward` gets each call before it runs (for a watchdog and the
// matcher), `forward_wait` an asynchronous one before the rank waits for it. Both may be empty.
class CallTrace : public CallListener {
 public:
  using Forward = std::function<void(const Call&)>;
  using Clock = std::chrono::steady_clock;
  explicit CallTrace(Forward forward = {}, Forward forward_wait = {});

  void before_call(const Call& call) override;
  void before_wait(const Call& call) override;
  void after_call(const Call& call) override;

  // Begins or ends an action of a stage, "B3.1" (microbatch 3 in chunk 1) of a step.
  void act(const std::string& name, int64_t step, bool begins);

  // "all_reduce(sum) tp[0,1] [4,16,32] float64 '<label>'", in call order.
  const std::vector<std::string>& calls() const { return calls_; }
  int64_t call_count() const { return static_cast<int64_t>(calls_.size()); }
  // Counts by axis and op, {"tp", "all_reduce"}; the axis is the group's name without its ranks.
  const std::map<std::pair<std::string, std::string>, int64_t>& counts() const { return counts_; }
  // The calls and their waits, after the trace began. An asynchronous call lasts until its wait()
  // has returned. Then the actions.
  std::vector<Stretch> timeline() const;

 private:
  struct Span {
    Call call;
    Clock::time_point start, wait_start = {}, end = {};
    bool waited = false, ended = false;
  };
  struct Acted {
    std::string name;
    int64_t step = 0;
    Clock::time_point start, end;
  };
  Span* open_span(const Call& call);

  Forward forward_, forward_wait_;
  const Clock::time_point origin_ = Clock::now();
  std::vector<std::string> calls_;
  std::vector<Span> spans_;
  std::vector<Acted> actions_;
  std::map<std::pair<std::string, std::string>, int64_t> counts_;
};

}  // namespace shardproof::sim::world
