#include "golden/learning_rate.h"

#include <algorithm>
#include <cmath>

namespace shardproof::golden {
namespace {

double share_of(const sim::SchedulerSpec& scheduler, int64_t epoch) {
  if (scheduler.kind == ScheduleKind::kConstant) {
    return epoch < scheduler.total_iters ? scheduler.factor : 1.0;
  }
  if (scheduler.kind == ScheduleKind::kLinear) {
    const auto reached = static_cast<double>(std::min(epoch, scheduler.total_iters));
    return scheduler.start_factor + (scheduler.end_factor - scheduler.start_factor) * reached /
                                        static_cast<double>(scheduler.total_iters);
  }
  const auto last = static_cast<int64_t>(scheduler.lr_lambda.size()) - 1;
  return scheduler.lr_lambda[static_cast<size_t>(std::min(epoch, last))];
}

double cosine(const sim::SchedulerSpec& scheduler, double initial, int64_t epoch) {
  const double angle = M_PI * static_cast<double>(epoch) / static_cast<double>(scheduler.t_max);
  return scheduler.eta_min + (initial - scheduler.eta_min) * (1 + std::cos(angle)) / 2;
}

}  // namespace

double learning_rate(const sim::OptimizerSpec& spec, int64_t steps) {
  if (spec.schedulers.empty()) return spec.lr;
  size_t index = 0;
  int64_t begin = 0;
  while (index < spec.milestones.size() && spec.milestones[index] <= steps) {
    begin = spec.milestones[index++];
  }
  const sim::SchedulerSpec& scheduler = spec.schedulers[index];
  if (scheduler.kind == ScheduleKind::kCosine) return cosine(scheduler, spec.lr, steps - begin);
  return spec.lr * share_of(scheduler, steps - begin);
}

}  // namespace shardproof::golden
