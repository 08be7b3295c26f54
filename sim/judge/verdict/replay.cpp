#include "sim/judge/verdict/replay.h"

#include <fmt/format.h>

namespace shardproof::sim {
namespace {

bool is_scenario(const std::string& file) {
  const auto ends = [&](std::string_view end) {
    return file.size() >= end.size() &&
           file.compare(file.size() - end.size(), end.size(), end) == 0;
  };
  return ends(".yaml") || ends(".yml");
}

// The mesh and whatever is not as `check` has it when nothing is said.
std::string check_flags(const CaseSpec& spec) {
  const ParallelSpec& parallel = spec.parallel;
  std::string flags = fmt::format(" --mesh dp={},cp={},ulysses={},tp={}", parallel.dp, parallel.cp,
                                  parallel.ulysses, parallel.tp);
  const auto add = [&flags](bool differs, const std::string& flag) {
    if (differs) flags += " --" + flag;
  };
  add(parallel.sequence_parallel, "sequence-parallel");
  add(parallel.data_parallel != "fsdp", "data-parallel " + parallel.data_parallel);
  add(!parallel.fsdp.reshard_after_forward, "fsdp-no-reshard");
  add(parallel.fsdp.replicate_size != 1,
      fmt::format("replicate-size {}", parallel.fsdp.replicate_size));
  add(parallel.activation_checkpointing != "none",
      "activation-checkpointing=" + parallel.activation_checkpointing);
  add(spec.batching.kind == "packed", "packed");
  add(spec.batching.kind == "dynamic", fmt::format("dynamic-batching {}", spec.batching.tokens));
  add(parallel.context_layout != "zigzag", "context-layout " + parallel.context_layout);
  add(parallel.context_rotation != "send_recv", "context-rotation " + parallel.context_rotation);
  add(spec.micro_batch_size > 0, fmt::format("microbatch {}", spec.micro_batch_size));
  add(spec.precision != "float64", "precision " + spec.precision);
  return flags;
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
  const bool scenario = is_scenario(spec.file);
  std::string command = "shardproof ";
  command += scenario
                 ? fmt::format("run {} --only {}", shell_word(spec.file), shell_word(spec.name))
                 : fmt::format("check {}{}", shell_word(spec.file), check_flags(spec));
  // `run` without --backend means every world; `check` means the emulated one.
  if (scenario || spec.world.backend != "emulated") command += " --backend " + spec.world.backend;
  if (spec.world.device != "cpu") command += " --device " + spec.world.device;
  return command;
}

}  // namespace shardproof::sim
