// check: runs a case folder sharded and judges it.
#include <fmt/format.h>

#include <filesystem>
#include <iostream>
#include <optional>

#include "base/error.h"
#include "sim/case/scenario/case_folder.h"
#include "sim/cli/check_case.h"
#include "sim/cli/commands.h"
#include "sim/cli/machine.h"
#include "sim/cli/outputs.h"
#include "sim/cli/version.h"
#include "sim/report/color.h"
#include "sim/report/run_folder.h"
#include "sim/report/summary.h"
#include "sim/run/case_check.h"
#include "sim/run/case_runner.h"
#include "sim/run/file_judgement.h"

namespace shardproof::sim::cli {

namespace {

// The case's own answers are a second witness of the golden. They are compared with it before the
// run, so that a wrong file leaves no result. Returns nothing when there is no such file.
std::optional<judge::FileJudgement> judge_expected(const CaseSpec& spec, run::GoldenStore& goldens,
                                                   world::WorldPool& pool) {
  if (spec.expected_file.empty()) return std::nullopt;
  return run::judge_file(spec, goldens, pool, spec.expected_file);
}

// Prints what the run was compared with. Returns the first result that does not match.
judge::CaseResult with_witness(judge::CaseResult result,
                               const std::optional<judge::FileJudgement>& judged, bool color) {
  if (result.verdict != Verdict::kMatch && result.verdict != Verdict::kMismatch) return result;
  if (!judged) {
    std::cout << "compared with shardproof's own golden only, and with no expected.safetensors\n";
    return result;
  }
  const judge::CaseResult& witness = judged->result;
  if (witness.verdict == Verdict::kMatch) {
    const std::string unresolved = judge::unresolved_text(witness.account, witness.spec.precision);
    std::cout << fmt::format(
        "expected.safetensors agrees with the golden: {} tensors, at most {:.3g}% of "
        "an allowance used{}{}\n{}",
        witness.tensors_compared, 100 * witness.worst_ratio, unresolved.empty() ? "" : "; ",
        unresolved, judge::partial_line(*judged, "expected.safetensors", true));
    return result;
  }
  std::cout
      << "expected.safetensors does NOT agree with shardproof's own golden (\"actual\" is the "
         "file):\n"
      << judge::describe_result(witness, color) << '\n';
  return result.verdict == Verdict::kMatch ? witness : result;
}

// The case of a folder. Its own answers hold only for its own number of steps.
CaseSpec case_of(const CheckArguments& arguments) {
  CaseSpec spec = make_check_case(arguments);
  const bool other_steps = read_case_folder(arguments.case_path).steps != spec.steps;
  if (other_steps && !spec.expected_file.empty()) {
    std::cout << "expected.safetensors is left aside: --steps is not the case's own number\n";
    spec.expected_file.clear();
  }
  return spec;
}

void require_room_of_check(const CaseSpec& spec, const std::string& folder) {
  namespace fs = std::filesystem;
  if (!folder.empty()) run::check_room("--out", folder, run::report_bytes(spec));
  if (!spec.dump_file.empty()) {
    run::check_room("--dump", fs::path(spec.dump_file).parent_path().string(),
                    run::dump_bytes(spec));
  }
  if (!spec.save_folder.empty()) run::check_room("--save", spec.save_folder, run::save_bytes(spec));
}

}  // namespace

int check_command(const CheckArguments& arguments, const CommandLine& command,
                  world::WorldPool& pool) {
  const CaseSpec spec = case_of(arguments);
  run::check_case(spec);
  std::cout << run::unread_keys_note(spec);
  require_can_run(spec.world.backend, spec.world.device);
  std::cerr << run::crowd_warning(spec);
  if (spec.parallel.world_size() == 1) {
    std::cout << "on one rank nothing is sharded; --mesh gives it more\n";
  }
  const std::string& out = arguments.out;
  const std::string folder =
      out.empty() ? "" : results_folder(out, inputs_of(spec), arguments.force);
  const std::optional<run::MachineLimits> limits = limits_for(arguments.world);
  if (limits) require_room_of_check(spec, folder);
  run::GoldenStore goldens(pool, !arguments.world.no_cache, limits);
  run::CaseRunner runner(pool, goldens, arguments.world.fresh, limits);
  const bool color = report::wants_color();
  const std::optional<judge::FileJudgement> witness = judge_expected(spec, goldens, pool);
  if (pool.interrupted()) return 130;
  if (witness && witness->result.verdict == Verdict::kBadInput) {
    std::cout << judge::describe_result(witness->result, color) << '\n';
    return judge::exit_status({witness->result});
  }
  judge::CaseResult result = runner.run(spec);
  result.replay = with_replay_flags(result.replay, arguments);
  if (pool.interrupted()) return 130;
  std::cout << report::result_text(result, color) << '\n';
  result = with_witness(std::move(result), witness, color);
  const int status = judge::exit_status({result});
  if (!folder.empty()) {
    report::RunInfo info;
    info.command = command.text;
    info.version = version_text();
    info.seconds = result.seconds;
    info.exit_status = status;
    report::write_run_files(folder, {result}, info);
    std::cout << "results in " << folder << '\n';
  }
  return status;
}

}  // namespace shardproof::sim::cli
