#include "sim/cli/replay_flags.h"

#include <fmt/format.h>

#include "sim/judge/verdict/replay.h"

namespace shardproof::sim {

namespace {

std::string flag_text(const char* flag, const std::optional<int64_t>& value) {
  return value ? fmt::format(" {} {}", flag, *value) : "";
}

}  // namespace

std::string with_replay_flags(const std::string& command, const RunArguments& arguments) {
  return command.empty() ? "" : command + flag_text("--seed", arguments.seed);
}

std::string with_replay_flags(const std::string& command, const CheckArguments& arguments) {
  if (command.empty()) return "";
  const std::string& plan = arguments.custom_plan;
  return command + flag_text("--steps", arguments.steps) + flag_text("--seed", arguments.seed) +
         (plan.empty() ? "" : " --custom-plan " + shell_word(plan));
}

}  // namespace shardproof::sim
