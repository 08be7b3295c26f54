// judge, where everything is in files: recorded runs, and the answers of a case.
#include <fmt/format.h>

#include <chrono>
#include <iostream>

#include "base/error.h"
#include "sim/case/scenario/case_folder.h"
#include "sim/cli/outputs.h"
#include "sim/cli/uses/file_commands.h"
#include "sim/cli/uses/judge_output.h"
#include "sim/report/color.h"
#include "sim/uses/recorded/answer_file.h"
#include "sim/uses/recorded/recorded_judgement.h"

namespace shardproof::sim::cli {

namespace {

// Throws when a flag that changes a case is given; `because` says why it cannot be here.
void refuse_case_flags(const CheckArguments& arguments, const std::string& because) {
  for (const auto& [flag, value] : arguments.flags) {
    if (value.empty()) continue;
    throw_bad_input(fmt::format("{} changes the case, and {}", flag, because),
                    fmt::format("leave {} out", flag));
  }
}

int judge_recorded(const CheckArguments& arguments) {
  if (!arguments.result_file.empty()) {
    throw_bad_input(arguments.case_path + " is a recorded run, which takes no result file",
                    "write shardproof judge RUN --golden RUN_OF_ONE_RANK");
  }
  if (arguments.allow_partial) {
    throw_bad_input(
        "--allow-partial is of result files, and " + arguments.case_path + " is a recorded run",
        "leave it out");
  }
  refuse_case_flags(arguments, arguments.case_path + " is a recorded run, which has no case");
  if (arguments.world.no_cache) {
    throw_bad_input("--no-cache computes the golden of a case anew, and " + arguments.case_path +
                        " is a recorded run",
                    "leave it out");
  }
  if (arguments.force && arguments.out.empty()) {
    throw_bad_input("--force replaces what lies at --out, which is not given",
                    "name the folder with --out, or leave it out");
  }
  if (arguments.golden.empty()) {
    throw_bad_input(arguments.case_path + " is a recorded run, and nothing to compare it with",
                    "record the script on one rank, and name that run: --golden RUN");
  }
  require_two(arguments.case_path, arguments.golden);
  const auto start = std::chrono::steady_clock::now();
  const std::string folder = make_judge_folder(arguments);
  Ticker ticker;
  ticker.at("reading the golden");
  const recorded::RecordedRun reference = recorded::read_recorded_run(arguments.golden);
  if (reference.world_size > 1 && !arguments.reference) {
    throw_bad_input(fmt::format("{} has {} ranks, so it does not show what one rank computes",
                                arguments.golden, reference.world_size),
                    "record the script on one rank, or compare two layouts with --reference");
  }
  ticker.at("reading the run");
  recorded::RecordedRun run = recorded::read_recorded_run(arguments.case_path);
  ticker.at("judging");
  const recorded::RecordedJudgement judgement = recorded::judge_recorded_run(
      std::move(run), reference, [&](int64_t done, int64_t all) { ticker.done(done, all); });
  std::cout << recorded::describe_judgement(judgement, report::wants_color()) << '\n';
  annotate(judgement);
  const int status = judge::exit_status({judgement.result}, arguments.no_unresolved);
  ticker.at("writing the folder of --out");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  write_judge_folder(folder, arguments, judgement, seconds.count(), status);
  return status;
}

int judge_answers(const CheckArguments& arguments) {
  refuse_case_flags(arguments, arguments.golden + " holds the answers of the case as it is");
  if (arguments.reference) {
    throw_bad_input(
        "--reference is of recorded runs, and " + arguments.case_path + " has no run.json",
        "leave it out");
  }
  require_two(arguments.result_file, arguments.golden);
  const CaseSpec spec = read_case_folder(arguments.case_path);
  const recorded::RecordedRun golden = recorded::read_answers(arguments.golden, spec);
  const recorded::RecordedRun answers = recorded::read_answers(arguments.result_file, spec);
  recorded::require_known_answers(answers, golden);
  judge::FileJudgement held;
  held.demanded = std::ssize(golden.pieces);
  held.lacking = recorded::lacking_answers(answers, golden);
  const recorded::RecordedJudgement judgement = recorded::judge_recorded_run(answers, golden);
  held.result = judgement.result;
  const std::string partial =
      judge::partial_line(held, arguments.result_file, arguments.allow_partial);
  std::cout << recorded::describe_judgement(judgement, report::wants_color()) << '\n' << partial;
  return judge::exit_status({judgement.result}, arguments.no_unresolved);
}

}  // namespace

std::optional<int> judge_files(const CheckArguments& arguments) {
  if (recorded::is_recorded_run(arguments.case_path)) return judge_recorded(arguments);
  const WaitNote note("reading and comparing");
  if (!arguments.out.empty() || arguments.force) {
    throw_bad_input(
        "--out and --force are of recorded runs, and " + arguments.case_path + " has no run.json",
        "leave them out");
  }
  const bool has_golden = !arguments.golden.empty();
  if (has_golden && !looks_like_case_folder(arguments.case_path)) {
    throw_bad_input(arguments.case_path + " is not a recorded run: it has no run.json",
                    "name the folder of a run that was closed (docs/recorded_runs.md)");
  }
  if (!has_golden && (arguments.reference || arguments.no_unresolved)) {
    throw_bad_input("--reference and --no-unresolved are of recorded runs, and " +
                        arguments.case_path + " has no run.json",
                    "leave them out");
  }
  if (arguments.result_file.empty()) {
    throw_bad_input("judge needs a result file beside the case folder " + arguments.case_path,
                    "write shardproof judge CASE FILE, or shardproof judge RUN --golden RUN1");
  }
  if (!has_golden) return std::nullopt;
  return judge_answers(arguments);
}

}  // namespace shardproof::sim::cli
