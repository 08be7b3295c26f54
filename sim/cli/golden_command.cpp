// golden: computes only the single-device result of a case folder or of one case of a scenario.
#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "base/failure.h"
#include "base/read_text.h"
#include "sim/cli/check_case.h"
#include "sim/cli/commands.h"
#include "sim/cli/machine.h"
#include "sim/cli/outputs.h"
#include "sim/cli/selection.h"
#include "sim/report/color.h"
#include "sim/run/case_check.h"
#include "sim/run/file_judgement.h"
#include "sim/run/golden_store.h"

namespace shardproof::sim::cli {

namespace {

CaseSpec scenario_case(const CheckArguments& arguments) {
  RunArguments run;
  run.paths = {arguments.case_path};
  run.backends = {"emulated"};
  run.only = arguments.only;
  run.workloads = arguments.workloads;
  return select_one_case(run);
}

int status_of_golden(const world::TaskOutcome& outcome) {
  if (outcome.ok) return 0;
  switch (outcome.kind) {
    case ResultKind::kBadInput:
      return 2;
    case ResultKind::kRefused:
      return 4;
    case ResultKind::kDied:  // ended from outside
    case ResultKind::kHung:
      return 3;
    default:
      return 5;
  }
}

}  // namespace

int golden_command(const CheckArguments& arguments, world::WorldPool& pool) {
  CheckArguments folder = arguments;
  folder.dump = "";
  const bool is_folder = std::filesystem::is_directory(arguments.case_path);
  CaseSpec spec = is_folder ? make_check_case(folder) : scenario_case(arguments);
  set_flags(arguments, spec);
  run::check_case(spec);
  if (is_folder) std::cerr << run::unread_keys_note(spec);  // of a scenario its reader says it
  const std::string dump = output_file("--dump", arguments.dump, inputs_of(spec), arguments.force);
  run::GoldenStore goldens(pool, false, limits_for(arguments.world));
  const auto golden = goldens.make(spec, dump);
  if (pool.interrupted()) return 130;
  if (golden->outcome.ok) {
    std::cout << nlohmann::json(golden->outcome.golden) << '\n';
  } else {
    print_failure(golden->outcome.message);
  }
  return status_of_golden(golden->outcome);
}

int judge_command(const CheckArguments& arguments, world::WorldPool& pool) {
  const CaseSpec spec = make_check_case(arguments);
  run::check_case(spec);
  std::cout << run::unread_keys_note(spec);
  if (const std::string why = why_no_file(arguments.result_file); !why.empty()) {
    throw_bad_input(arguments.result_file + " " + why, "name a safetensors file");
  }
  run::GoldenStore goldens(pool, !arguments.world.no_cache, limits_for(arguments.world));
  judge::FileJudgement judgement = run::judge_file(spec, goldens, pool, arguments.result_file);
  if (pool.interrupted()) return 130;
  judge::CaseResult& result = judgement.result;
  const std::string partial =
      judge::partial_line(judgement, arguments.result_file, arguments.allow_partial);
  result.replay = with_replay_flags(result.replay, arguments);
  std::cout << judge::describe_result(result, report::wants_color()) << '\n' << partial;
  return judge::exit_status({result});
}

}  // namespace shardproof::sim::cli
