// schema: the JSON Schema of scenario files, for editors. Hidden; scenarios/schema.json holds its
// output.
#include <iostream>

#include "sim/case/scenario/schema.h"
#include "sim/cli/commands.h"

namespace shardproof::sim {

int schema_command() {
  std::cout << Schema().json_schema().dump(2) << '\n';
  return 0;
}

}  // namespace shardproof::sim
