#include "sim/world/launch/deadline.h"

#include <sched.h>

#include <algorithm>

namespace shardproof::sim::world {

bool Deadline::sample(double now_s, const std::vector<double>& cpu_s, uint64_t done) {
  if (done != last_done_) {
    taken_before_s_ += taken_s_;
    taken_s_ = 0;
    moved_s_ = last_s_;
    last_done_ = done;
  }
  last_cpu_s_.resize(cpu_s.size(), 0);
  double busiest = 0, total = 0;
  for (size_t i = 0; i < cpu_s.size(); ++i) {
    const double used = std::max(cpu_s[i] - last_cpu_s_[i], 0.0);
    busiest = std::max(busiest, used);
    total += used;
  }
  taken_s_ += std::min(now_s - last_s_, std::max(busiest, total / cores_));
  last_s_ = now_s;
  last_cpu_s_ = cpu_s;
  const double longest_s = kLongest * limit_s_;
  return taken_s_ > limit_s_ || taken_before_s_ + taken_s_ > longest_s ||
         now_s - moved_s_ > longest_s;
}

double usable_cores() {
  cpu_set_t cores;
  if (::sched_getaffinity(0, sizeof(cores), &cores) != 0) return 1;
  return std::max(CPU_COUNT(&cores), 1);
}

double HangRule::period_s() const { return std::clamp(hang_s_ / 8, 0.02, 0.5); }

void HangRule::restart() { started_ = false; }

bool HangRule::sample(const HangSample& sample) {
  const double elapsed = started_ ? sample.now_s - last_.now_s : 0;
  bool moved =
      !started_ || sample.calls != last_.calls || sample.cpu_s.size() != last_.cpu_s.size();
  for (size_t i = 0; !moved && i < sample.cpu_s.size(); ++i) {
    moved = sample.cpu_s[i] - last_.cpu_s[i] > kIdleShare * elapsed;
  }
  idle_s_ = moved ? 0 : idle_s_ + std::min(elapsed, 2 * period_s());
  started_ = true;
  last_ = sample;
  return idle_s_ >= hang_s_;
}

}  // namespace shardproof::sim::world
