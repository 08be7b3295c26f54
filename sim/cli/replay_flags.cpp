#include "sim/cli/replay_flags.h"

#include <fmt/format.h>

#include "sim/case/option.h"
#include "sim/cli/schedule_runs.h"
#include "sim/judge/verdict/replay.h"

namespace shardproof::sim::cli {

std::string with_replay_flags(const std::string& command, const RunArguments& arguments,
                              int64_t schedules) {
  if (command.empty()) return "";
  std::string flags;
  if (arguments.seed) flags += fmt::format(" --seed {}", *arguments.seed);
  if (arguments.sample_rows > 0) flags += fmt::format(" --sample-rows {}", arguments.sample_rows);
  if (arguments.schedules > 0 && schedules > 0) flags += fmt::format(" --schedules {}", schedules);
  if (arguments.schedules == kAllSchedules) flags += " --schedules all";
  if (arguments.relations) flags += " --relations";
  return command + flags;
}

std::string with_replay_flags(const std::string& command, const CheckArguments& arguments) {
  if (command.empty()) return "";
  std::string flags;
  for (const CaseOption& option : case_options()) {
    const std::string text = arguments.flag(option.flag_name());
    if (option.flag.replay != Flag::Replay::kWhenGiven || text.empty()) continue;
    flags += " " + option.flag_name() + " " + text;
  }
  const std::string& plan = arguments.custom_plan;
  return command + flags + (plan.empty() ? "" : " --custom-plan " + judge::shell_word(plan));
}

}  // namespace shardproof::sim::cli
