#include "sim/cli/replay_flags.h"

#include <fmt/format.h>

#include <filesystem>
#include <string_view>

#include "sim/case/option.h"
#include "sim/judge/verdict/replay.h"

namespace shardproof::sim::cli {
namespace {

namespace fs = std::filesystem;

// A program with its own workloads replays its cases itself: `shardproof` does not know them.
std::string by_this_program(const std::string& command) {
  constexpr std::string_view kName = "shardproof";
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error || program.filename().string().starts_with(kName)) return command;
  const fs::path near = fs::proximate(program, error);
  const bool is_below = !error && !near.empty() && *near.begin() != "..";
  const std::string name = is_below && near.has_parent_path() ? near.string() : program.string();
  return judge::shell_word(name) + command.substr(kName.size());
}

}  // namespace

std::string with_replay_flags(const std::string& command, const RunArguments& arguments,
                              int64_t schedules) {
  if (command.empty()) return "";
  std::string flags;
  if (arguments.seed) flags += fmt::format(" --seed {}", *arguments.seed);
  if (arguments.sample_rows > 0) flags += fmt::format(" --sample-rows {}", arguments.sample_rows);
  if (arguments.schedules > 0 && schedules > 0) flags += fmt::format(" --schedules {}", schedules);
  if (arguments.schedules == runs::kAllSchedules) flags += " --schedules all";
  if (arguments.relations) flags += " --relations";
  return by_this_program(command) + flags;
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
  return by_this_program(command) + flags +
         (plan.empty() ? "" : " --custom-plan " + judge::shell_word(plan));
}

}  // namespace shardproof::sim::cli
