// schema: prints the JSON Schema of scenario files (scenarios/schema.json) for editors. Hidden.
#include <iostream>

#include "sim/case/scenario/schema.h"
#include "sim/cli/commands.h"

namespace shardproof::sim {

int schema_command() {
  std::cout << Schema().json_schema().dump(2) << '\n';
  return 0;
}

}  // namespace shardproof::sim
