// The time limit of a case: how long it may compute without a further call or op. Time in which its
// processes waited for a processor that other programs used does not count, so that a busy machine
// changes no verdict. Plain arithmetic on samples.
#pragma once

#include <cstdint>
#include <vector>

namespace shardproof::sim::world {

class Deadline {
 public:
  // A case that uses no processor (its ranks sleep, or wait for the disk) may take this many times
  // its limit, and so may one whose ranks go on with calls or ops.
  static constexpr double kLongest = 10;

  // `cores`: of this machine, at least 1.
  Deadline(double limit_s, double cores) : limit_s_(limit_s), cores_(cores) {}
  // `cpu_s`: CPU time used so far, per process. Between two samples a case takes as long as its
  // busiest process computes, or all processes together on all cores, and at most as long as the
  // clock says. `done`: calls and ops of all ranks so far. True when the time since the last one
  // exceeds the limit, or the whole time exceeds kLongest limits.
  bool sample(double now_s, const std::vector<double>& cpu_s, uint64_t done = 0);
  // Whether the last call or op is so long ago that the ranks should be sampled for their ops.
  bool is_near() const { return taken_s_ > limit_s_ / 4; }

 private:
  double limit_s_, cores_;
  double taken_s_ = 0;         // computing since the last call or op
  double taken_before_s_ = 0;  // computing until then
  double moved_s_ = 0;         // when the last one was seen
  double last_s_ = 0;
  uint64_t last_done_ = 0;
  std::vector<double> last_cpu_s_;
};

// The cores that this process may use, at least 1.
double usable_cores();

// When a world counts as hung: over `hang_s` no call count has moved and its processes have used no
// more than 5% of that time as CPU. Plain arithmetic on what control samples.
struct HangSample {
  double now_s = 0;           // a steady clock
  uint64_t calls = 0;         // of all ranks
  std::vector<double> cpu_s;  // used so far, per process
};

class HangRule {
 public:
  static constexpr double kIdleShare = 0.05;

  explicit HangRule(double hang_s) : hang_s_(hang_s) {}
  // True when the rule is fulfilled at this sample. A gap between samples much longer than the
  // sampling period (control itself was stopped) counts as one period only.
  bool sample(const HangSample& sample);
  // Starts the window anew: something else showed that the ranks are alive.
  void restart();
  double period_s() const;  // how often to sample

 private:
  double hang_s_;
  bool started_ = false;
  double idle_s_ = 0;
  HangSample last_;
};

}  // namespace shardproof::sim::world
