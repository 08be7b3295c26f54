// schema: prints the JSON Schema of scenario files (scenarios/schema.json) for editors, or the
// workloads that they may name (scenarios/workloads.json) for shardproof-light. Hidden.
#include <iostream>

#include "sim/case/scenario/schema.h"
#include "sim/cli/commands.h"

namespace shardproof::sim::cli {

int schema_command(const RunArguments& arguments) {
  const nlohmann::json printed =
      arguments.known ? workload_table(arguments.workloads) : case_schema().json_schema();
  std::cout << printed.dump(2) << '\n';
  return 0;
}

}  // namespace shardproof::sim::cli
