#include "sim/compare/replay.h"

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

// Quoted for a shell where a character needs it.
std::string shell_word(const std::string& word) {
  constexpr const char* kPlain =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-./=,:+";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

}  // namespace

std::string replay_command(const CaseSpec& spec) {
  if (spec.file.empty()) return "";
  std::string command;
  const ParallelSpec& parallel = spec.parallel;
  if (is_scenario(spec.file)) {
    command =
        fmt::format("shardproof run {} --only {}", shell_word(spec.file), shell_word(spec.name));
  } else {
    command =
        fmt::format("shardproof check {} --mesh dp={},cp={},ulysses={},tp={}",
                    shell_word(spec.file), parallel.dp, parallel.cp, parallel.ulysses, parallel.tp);
    if (parallel.sequence_parallel) command += " --sequence-parallel";
    if (parallel.data_parallel != "fsdp")  // what `check` does when nothing is said
      command += " --data-parallel " + parallel.data_parallel;
    if (!parallel.fsdp.reshard_after_forward) command += " --fsdp-no-reshard";
    if (parallel.fsdp.replicate_size != 1)
      command += fmt::format(" --replicate-size {}", parallel.fsdp.replicate_size);
    if (parallel.activation_checkpointing != "none")
      command += " --activation-checkpointing=" + parallel.activation_checkpointing;
    if (spec.batching.kind == "packed") command += " --packed";
    if (spec.batching.kind == "dynamic")
      command += fmt::format(" --dynamic-batching {}", spec.batching.tokens);
    if (parallel.context_layout != "zigzag")
      command += " --context-layout " + parallel.context_layout;
    if (parallel.context_rotation != "send_recv")
      command += " --context-rotation " + parallel.context_rotation;
    if (spec.micro_batch_size > 0)
      command += fmt::format(" --microbatch {}", spec.micro_batch_size);
    if (spec.precision != "float64") command += " --precision " + spec.precision;
  }
  // `run` without --backend means every world; `check` means the emulated one.
  if (is_scenario(spec.file) || spec.world.backend != "emulated") {
    command += " --backend " + spec.world.backend;
  }
  if (spec.world.device != "cpu") command += " --device " + spec.world.device;
  return command;
}

}  // namespace shardproof::sim
