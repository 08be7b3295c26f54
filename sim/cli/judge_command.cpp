// judge: compares a recorded run with that of one rank, or a result file with a case's golden.

#include <fmt/format.h>

#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "sim/cli/check_case.h"
#include "sim/cli/commands.h"
#include "sim/cli/machine.h"
#include "sim/cli/replay_flags.h"
#include "sim/recorded/recorded_judgement.h"
#include "sim/report/color.h"
#include "sim/run/case_check.h"
#include "sim/run/file_judgement.h"

namespace shardproof::sim {

namespace {

[[noreturn]] void bad_arguments(const std::string& what, const std::string& fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = what, .fix = fix});
}

int judge_recorded(const CheckArguments& arguments) {
  if (!arguments.result_file.empty()) {
    bad_arguments(arguments.case_path + " is a recorded run, which takes no result file",
                  "write shardproof judge RUN --golden RUN_OF_ONE_RANK");
  }
  if (arguments.allow_partial) {
    bad_arguments(
        "--allow-partial is of result files, and " + arguments.case_path + " is a recorded run",
        "leave it out");
  }
  if (arguments.golden.empty()) {
    bad_arguments(arguments.case_path + " is a recorded run, and nothing to compare it with",
                  "record the script on one rank, and name that run: --golden RUN");
  }
  const RecordedRun reference = read_recorded_run(arguments.golden);
  if (reference.world_size > 1 && !arguments.reference) {
    bad_arguments(fmt::format("{} has {} ranks, so it does not show what one rank computes",
                              arguments.golden, reference.world_size),
                  "record the script on one rank, or compare two layouts with --reference");
  }
  const RecordedJudgement judgement =
      judge_recorded_run(read_recorded_run(arguments.case_path), reference);
  std::cout << describe_judgement(judgement, wants_color()) << '\n';
  return exit_status({judgement.result}, arguments.no_unresolved);
}

}  // namespace

int judge_command(const CheckArguments& arguments, WorldPool& pool) {
  if (is_recorded_run(arguments.case_path)) return judge_recorded(arguments);
  if (!arguments.golden.empty()) {
    bad_arguments(arguments.case_path + " is no recorded run: it has no run.json",
                  "name the folder of a run that was closed (docs/recorded_runs.md)");
  }
  if (arguments.reference || arguments.no_unresolved) {
    bad_arguments("--reference and --no-unresolved are of recorded runs, and " +
                      arguments.case_path + " has no run.json",
                  "leave them out");
  }
  if (arguments.result_file.empty()) {
    bad_arguments("judge needs a result file beside the case folder " + arguments.case_path,
                  "write shardproof judge CASE FILE, or shardproof judge RUN --golden RUN1");
  }
  const CaseSpec spec = make_check_case(arguments);
  check_case(spec);
  std::cout << unread_keys_note(spec);
  if (!std::filesystem::is_regular_file(arguments.result_file)) {
    const bool there = std::filesystem::exists(arguments.result_file);
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = arguments.result_file + (there ? " is no file" : " does not exist"),
                 .fix = "name a safetensors file"});
  }
  GoldenStore goldens(pool, !arguments.world.no_cache, limits_for(arguments.world));
  FileJudgement judgement = judge_file(spec, goldens, pool, arguments.result_file);
  if (pool.interrupted()) return 130;
  CaseResult& result = judgement.result;
  const std::string partial = partial_text(judgement, arguments.result_file);
  if (result.verdict == Verdict::kMatch && !partial.empty() && !arguments.allow_partial) {
    bad_arguments(partial, "write the rest too, or add --allow-partial");
  }
  result.replay = with_replay_flags(result.replay, arguments);
  std::cout << describe_result(result, wants_color()) << '\n';
  if (!partial.empty()) std::cout << partial << '\n';
  return exit_status({result});
}

}  // namespace shardproof::sim
