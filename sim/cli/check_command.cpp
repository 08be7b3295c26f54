// check: a case folder, run sharded and judged.
#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "sim/cli/case_runner.h"
#include "sim/cli/check_case.h"
#include "sim/cli/commands.h"
#include "sim/cli/machine.h"
#include "sim/cli/version.h"
#include "sim/report/run_folder.h"

namespace shardproof::sim {

namespace {

void say_what_was_compared(const CaseSpec& spec) {
  if (spec.expected_file.empty()) {
    std::cout << "compared with shardproof's own golden only: the case has no expected.safetensors\n";
  }
}

}  // namespace

int check_command(const CheckArguments& arguments, const std::string& command_line, WorldPool& pool) {
  const CaseSpec spec = make_check_case(arguments);
  const std::string reason = why_not(spec.world.backend, spec.world.device);
  if (!reason.empty()) {
    throw Error({.kind = ErrorKind::kBadInput, .what = "this world cannot run here", .fix = reason});
  }
  GoldenStore goldens(pool, !arguments.world.no_cache);
  CaseRunner runner(pool, goldens, arguments.world.fresh);
  const CaseResult result = runner.run(spec);
  if (pool.interrupted()) return 130;
  std::cout << describe_result(result, ::isatty(STDOUT_FILENO) != 0) << '\n';
  const bool judged = result.verdict == "match" || result.verdict == "mismatch";
  if (judged) say_what_was_compared(spec);
  const int status = exit_status({result});
  if (!arguments.out.empty()) {
    RunInfo info;
    info.command = command_line;
    info.version = version_text();
    info.seconds = result.seconds;
    info.exit_status = status;
    std::cout << "results in " << write_run_folder(arguments.out, {result}, info) << '\n';
  }
  return status;
}

}  // namespace shardproof::sim
