// run: the selected cases on worlds of our own.
#include "sim/cli/commands.h"
#include "sim/cli/run_cases.h"

namespace shardproof::sim {

int run_command(const RunArguments& arguments, const std::string& command_line, WorldPool& pool) {
  return run_cases(arguments, command_line, select_cases(arguments), pool);
}

}  // namespace shardproof::sim
