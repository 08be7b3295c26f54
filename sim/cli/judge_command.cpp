// judge: a result file that any framework wrote, against our own golden.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "sim/cli/case_runner.h"
#include "sim/cli/check_case.h"
#include "sim/cli/commands.h"

namespace shardproof::sim {

int judge_command(const CheckArguments& arguments, WorldPool&) {
  const CaseSpec spec = make_check_case(arguments);
  if (!std::filesystem::is_regular_file(arguments.result_file)) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = arguments.result_file + " does not exist",
                 .fix = "name a safetensors file"});
  }
  throw Error({.kind = ErrorKind::kRefused, .what = "judge is not supported yet", .fix = ""});
}

}  // namespace shardproof::sim
