#include "sim/cli/uses/uses_commands.h"

#include "sim/cli/uses/file_commands.h"

namespace shardproof::sim::cli {

UsesCommands uses_commands() {
  return {.describe = describe_command,
          .fuzz = fuzz_command,
          .judge_files = judge_files,
          .logprobs = logprobs_command,
          .shrink = shrink_command,
          .shrink_unexpected = shrink_unexpected,
          .validate = validate_command};
}

}  // namespace shardproof::sim::cli
