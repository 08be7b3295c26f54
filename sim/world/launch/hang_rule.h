// When a world counts as hung: over `hang_s` no call count has moved and its processes have used no
// more than 5% of that time as CPU. Plain arithmetic on what control samples.
#pragma once

#include <cstdint>
#include <vector>

namespace shardproof::sim::world {

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
