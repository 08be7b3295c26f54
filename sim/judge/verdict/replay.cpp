#include "sim/judge/verdict/replay.h"

#include <fmt/format.h>

#include "sim/case/option.h"

namespace shardproof::sim::judge {
namespace {

// " --context-layout contiguous", " --sequence-parallel", " --activation-checkpointing=mlp".
std::string flag_text(const CaseOption& option, const nlohmann::json& value) {
  if (value.is_boolean()) return " " + option.flag_name();
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  return " " + option.flag_name() + (option.of_bool.empty() ? " " : "=") + text;
}

// The mesh, and every option whose value differs from the default of `check`.
std::string check_flags(const CaseSpec& spec) {
  std::string mesh;
  for (const auto& [name, size, key, share] : kTrainingAxes) {
    mesh += fmt::format("{}{}={}", mesh.empty() ? " --mesh " : ",", name, spec.parallel.*size);
  }
  for (const auto& [name, size, key] : kExpertParts) {
    if (spec.parallel.*size > 1) mesh += fmt::format(",{}={}", name, spec.parallel.*size);
  }
  std::string sharding, others;
  for (const CaseOption& option : case_options()) {
    if (option.flag_name().empty() || option.flag.replay != Flag::Replay::kWhenSet) continue;
    const nlohmann::json value = option.get(spec, Extent::kAll);
    if (value == option.get({}, Extent::kAll)) continue;
    (option.path.starts_with("parallel.") ? sharding : others) += flag_text(option, value);
  }
  if (spec.batching.kind == BatchingKind::kPacked) sharding += " --packed";
  if (spec.batching.kind == BatchingKind::kDynamic) {
    sharding += fmt::format(" --dynamic-batching {}", spec.batching.token_budget);
  }
  return mesh + sharding + others;
}

}  // namespace

std::string shell_word(const std::string& word) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./=,:+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

std::string replay_command(const CaseSpec& spec) {
  if (spec.file.empty()) return "";
  const bool scenario =
      spec.file.ends_with(".yaml") || spec.file.ends_with(".yml") || spec.file.ends_with(".json");
  std::string command = "shardproof ";
  command += scenario
                 ? fmt::format("run {} --only {}", shell_word(spec.file), shell_word(spec.name))
                 : fmt::format("check {}{}", shell_word(spec.file), check_flags(spec));
  // `run` without --backend means every world; `check` means the emulated one.
  if (scenario || spec.world.backend != Backend::kEmulated) {
    command += " --backend " + name_of(spec.world.backend);
  }
  if (spec.world.device != DeviceKind::kCpu) command += " --device " + name_of(spec.world.device);
  return command;
}

}  // namespace shardproof::sim::judge
