#include "sim/world/launch/hang_rule.h"

#include <algorithm>

namespace shardproof::sim::world {

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
