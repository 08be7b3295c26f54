// lint: checks scenario files without running them.
#include <fmt/format.h>

#include <iostream>

#include "sim/cli/commands.h"
#include "sim/cli/selection.h"

namespace shardproof::sim {

int lint_command(const RunArguments& arguments) {
  const std::vector<std::string> files = find_scenario_files(arguments.paths);
  RunArguments all = arguments;
  all.paths = files;
  all.backends = {"emulated"};  // errors do not depend on the world
  all.all_tags = true;
  const Selection selection = select_cases(all);
  std::cout << fmt::format("{} files, {} cases: no errors\n", files.size(),
                           selection.cases.size() + selection.skipped.size());
  return 0;
}

}  // namespace shardproof::sim
