// judge: compares a result file of any framework with the golden.

#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "sim/cli/check_case.h"
#include "sim/cli/commands.h"
#include "sim/cli/replay_flags.h"
#include "sim/report/color.h"
#include "sim/run/case_check.h"
#include "sim/run/file_judgement.h"

namespace shardproof::sim {

int judge_command(const CheckArguments& arguments, WorldPool& pool) {
  const CaseSpec spec = make_check_case(arguments);
  check_case(spec);
  if (!std::filesystem::is_regular_file(arguments.result_file)) {
    const bool there = std::filesystem::exists(arguments.result_file);
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = arguments.result_file + (there ? " is no file" : " does not exist"),
                 .fix = "name a safetensors file"});
  }
  GoldenStore goldens(pool, !arguments.world.no_cache);
  CaseResult result = judge_file(spec, goldens, pool, arguments.result_file);
  if (pool.interrupted()) return 130;
  result.replay = with_replay_flags(result.replay, arguments);
  std::cout << describe_result(result, wants_color()) << '\n';
  return exit_status({result});
}

}  // namespace shardproof::sim
