#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace shardproof {
namespace {

constexpr double kPi = std::numbers::pi;

double cosine_at(int64_t epoch, int64_t t_max) {
  return std::cos(kPi * static_cast<double>(epoch) / static_cast<double>(t_max));
}

double linear_rate(const ScheduleStage& stage, int64_t epoch, double rate) {
  if (epoch == 0) return rate * stage.start_factor;
  if (epoch > stage.total_iters) return rate;
  const double slope = stage.end_factor - stage.start_factor;
  return rate * (1.0 + slope / (static_cast<double>(stage.total_iters) * stage.start_factor +
                                static_cast<double>(epoch - 1) * slope));
}

double cosine_rate(const ScheduleStage& stage, int64_t epoch, double rate, double initial) {
  const int64_t period = 2 * stage.t_max;
  const int64_t from_lowest = (epoch - 1 - stage.t_max) % period;
  if (from_lowest == 0) {
    const double first = std::cos(kPi / static_cast<double>(stage.t_max));
    return rate + (initial - stage.eta_min) * (1 - first) / 2;
  }
  return (1 + cosine_at(epoch, stage.t_max)) / (1 + cosine_at(epoch - 1, stage.t_max)) *
             (rate - stage.eta_min) +
         stage.eta_min;
}

double lambda_at(const ScheduleStage& stage, int64_t epoch) {
  const int64_t last = static_cast<int64_t>(stage.lambdas.size()) - 1;
  return stage.lambdas[static_cast<size_t>(std::min(epoch, last))];
}

}  // namespace

LrSchedule::LrSchedule(ScheduleOptions options, double initial_lr)
    : options_(std::move(options)), initial_(initial_lr) {
  SHARDPROOF_ASSERT(
      options_.stages.empty() || options_.milestones.size() + 1 == options_.stages.size(),
      "one milestone between two schedulers");
  for (const ScheduleStage& stage : options_.stages) {
    SHARDPROOF_ASSERT(stage.start_factor > 0 && stage.total_iters > 0 && stage.t_max > 0 &&
                          !stage.lambdas.empty(),
                      "a scheduler's factors and step counts are positive");
  }
  start();
}

// The first stage makes its initial step; the others have not begun.
void LrSchedule::start() {
  steps_ = 0;
  rate_ = initial_;
  epochs_.assign(options_.stages.size(), -1);
  if (options_.stages.empty()) return;
  const ScheduleStage& first = options_.stages.front();
  epochs_[0] = 0;
  // A cosine starts from the unchanged rate.
  if (first.kind != ScheduleKind::kCosine) rate_ = next_rate(first, 0);
}

double LrSchedule::next_rate(const ScheduleStage& stage, int64_t epoch) const {
  switch (stage.kind) {
    case ScheduleKind::kConstant:
      if (epoch == 0) return rate_ * stage.start_factor;
      return epoch == stage.total_iters ? rate_ * (1.0 / stage.start_factor) : rate_;
    case ScheduleKind::kLinear:
      return linear_rate(stage, epoch, rate_);
    case ScheduleKind::kCosine:
      return cosine_rate(stage, epoch, rate_, initial_);
    case ScheduleKind::kLambda:
      return initial_ * lambda_at(stage, epoch);
  }
  return rate_;
}

double LrSchedule::closed_form(const ScheduleStage& stage) const {
  switch (stage.kind) {
    case ScheduleKind::kConstant:
    case ScheduleKind::kLinear:
      return initial_ * stage.start_factor;
    case ScheduleKind::kCosine:
      return stage.eta_min + (initial_ - stage.eta_min) * (1 + cosine_at(0, stage.t_max)) / 2;
    case ScheduleKind::kLambda:
      return initial_ * lambda_at(stage, 0);
  }
  return initial_;
}

void LrSchedule::step() {
  ++steps_;
  if (options_.stages.empty()) return;
  const auto& milestones = options_.milestones;
  const auto passed = std::upper_bound(milestones.begin(), milestones.end(), steps_);
  const auto index = static_cast<size_t>(passed - milestones.begin());
  const ScheduleStage& stage = options_.stages[index];
  if (index > 0 && milestones[index - 1] == steps_) {
    epochs_[index] = 0;
    rate_ = closed_form(stage);
  } else {
    rate_ = next_rate(stage, ++epochs_[index]);
  }
}

double LrSchedule::after(int64_t steps) {
  if (steps < steps_) start();
  while (steps_ < steps) step();
  return rate_;
}

}  // namespace shardproof
