// The learning-rate schedulers of a scenario, in the form of the policy configuration.
//
//   scheduler: {name: torch.optim.lr_scheduler.LinearLR, kwargs: {start_factor: 0.1}}
//   scheduler: [{name: LinearLR, kwargs: {..}}, {name: ConstantLR, kwargs: {..}}, {milestones:
//   [5]}]
#include <fmt/format.h>

#include <algorithm>

#include "sim/case/names.h"
#include "sim/case/option.h"
#include "sim/case/scenario/blocks.h"

namespace shardproof::sim {
namespace {

using nlohmann::json;

constexpr const char* kPath = "run.scheduler";

std::vector<std::string> constants_of(ScheduleKind kind) {
  if (kind == ScheduleKind::kConstant) return {"factor", "total_iters", "last_epoch"};
  if (kind == ScheduleKind::kLinear)
    return {"start_factor", "end_factor", "total_iters", "last_epoch"};
  if (kind == ScheduleKind::kCosine) return {"T_max", "eta_min", "last_epoch"};
  return {"lr_lambda", "last_epoch"};
}

// The kwargs of one scheduler; an absent one keeps PyTorch's value.
class SchedulerConstants {
 public:
  SchedulerConstants(const Settings& settings, ScheduleKind kind, const json& kwargs)
      : settings_(settings), kind_(kind), kwargs_(kwargs) {
    const std::vector<std::string> known = constants_of(kind);
    for (const auto& [key, value] : kwargs.items()) {
      if (std::ranges::find(known, key) != known.end()) continue;
      fail(fmt::format("{} has no constant '{}'", kind, key), known_names(key, known));
    }
  }

  // Reads a number with low < value <= high, or low <= value with `from_low`.
  void number(const char* key, double& value, double low, bool from_low, double high) const {
    if (!kwargs_.contains(key)) return;
    const json& given = kwargs_[key];
    if (!given.is_number()) fail(named(key, given), "write a number");
    const double read = given.get<double>();
    if (!(read <= high && (from_low ? read >= low : read > low))) {
      fail(named(key, given), fmt::format("it must be {} {} and at most {}",
                                          from_low ? "at least" : "above", low, high));
    }
    value = read;
  }

  void steps(const char* key, int64_t& value, bool required) const {
    if (!kwargs_.contains(key)) {
      if (required) fail(fmt::format("{} has no {}", kind_, key), "add it: a number of steps");
      return;
    }
    const json& given = kwargs_[key];
    const bool fits = given.is_number_integer() && given >= 1 && given <= kManySteps;
    if (!fits) fail(named(key, given), "write a number of steps, 1 or more");
    value = given.get<int64_t>();
  }

  // Accepts only PyTorch's -1, from the start; a checkpoint resumes at a later step.
  void from_the_start() const {
    if (!kwargs_.contains("last_epoch") || kwargs_["last_epoch"] == -1) return;
    fail(named("last_epoch", kwargs_["last_epoch"]),
         "write -1 or remove it; a policy's stages save and load the schedule's step");
  }

  // Reads a number, or one for each step, of which the last one continues.
  void lambda(std::vector<double>& values) const {
    if (!kwargs_.contains("lr_lambda")) {
      fail("LambdaLR has no lr_lambda", "write a factor, or a list with one for each step");
    }
    const json& given = kwargs_["lr_lambda"];
    const json list = given.is_array() ? given : json::array({given});
    const bool numbers = std::ranges::all_of(
        list, [](const json& each) { return each.is_number() && each >= 0 && each <= 1e6; });
    if (list.empty() || !numbers) {
      fail(named("lr_lambda", given), "write a factor, or a list with one for each step");
    }
    values = list.get<std::vector<double>>();
  }

 private:
  std::string named(const char* key, const json& given) const {
    return fmt::format("{} of {} is {}", key, kind_, given.dump());
  }
  [[noreturn]] void fail(const std::string& what, const std::string& fix) const {
    settings_.fail(kPath, what, fix);
  }

  const Settings& settings_;
  ScheduleKind kind_;
  const json& kwargs_;
};

SchedulerSpec one_scheduler(const Settings& settings, ScheduleKind kind, const json& kwargs) {
  SchedulerSpec scheduler{.kind = kind};
  const SchedulerConstants constants(settings, kind, kwargs);
  constants.from_the_start();
  if (kind == ScheduleKind::kLambda) {
    constants.lambda(scheduler.lr_lambda);
    return scheduler;
  }
  constants.number("factor", scheduler.factor, 0, false, 1);
  constants.number("start_factor", scheduler.start_factor, 0, false, 1);
  constants.number("end_factor", scheduler.end_factor, 0, true, 1);
  constants.number("eta_min", scheduler.eta_min, 0, true, 1e6);
  constants.steps("total_iters", scheduler.total_iters, false);
  constants.steps("T_max", scheduler.t_max, kind == ScheduleKind::kCosine);
  return scheduler;
}

void check_milestones(const Settings& settings, const OptimizerSpec& optimizer) {
  const auto& milestones = optimizer.milestones;
  if (milestones.size() + 1 != std::max<size_t>(optimizer.schedulers.size(), 1)) {
    settings.fail(kPath,
                  fmt::format("{} schedulers have {} milestones between them",
                              optimizer.schedulers.size(), milestones.size()),
                  "name one scheduler more than milestones");
  }
  if (!std::ranges::is_sorted(milestones) || (!milestones.empty() && milestones.front() < 1)) {
    settings.fail(kPath, "the milestones do not grow from 1", "give them in the order of steps");
  }
}

}  // namespace

void set_schedulers(const Settings& settings, OptimizerSpec& optimizer) {
  bool ended = false;
  for (const json& record : settings.value(kPath)) {
    const std::string kind = record["name"];
    const bool closes = !record["milestones"].empty();
    if (ended || closes == !kind.empty()) {
      settings.fail(kPath,
                    "an item of run.scheduler is neither a scheduler nor, at the end, the "
                    "milestones",
                    "write {name: .., kwargs: {..}} for each and {milestones: [..]} last");
    }
    if (closes) {
      if (!record["kwargs"].empty()) {
        settings.fail(kPath, "the milestones of run.scheduler take no kwargs",
                      "give the kwargs to the schedulers before them");
      }
      optimizer.milestones = record["milestones"].get<std::vector<int64_t>>();
      ended = true;
    } else {
      optimizer.schedulers.push_back(
          one_scheduler(settings, enum_of<ScheduleKind>(kind), record["kwargs"]));
    }
  }
  check_milestones(settings, optimizer);
}

}  // namespace shardproof::sim
