// judge: compares a result file with a case's golden.
#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "sim/cli/check_case.h"
#include "sim/cli/commands.h"
#include "sim/cli/machine.h"
#include "sim/cli/replay_flags.h"
#include "sim/report/color.h"
#include "sim/run/case_check.h"
#include "sim/run/file_judgement.h"

namespace shardproof::sim::cli {

int judge_command(const CheckArguments& arguments, world::WorldPool& pool) {
  const CaseSpec spec = make_check_case(arguments);
  run::check_case(spec);
  std::cout << run::unread_keys_note(spec);
  if (!std::filesystem::is_regular_file(arguments.result_file)) {
    const bool there = std::filesystem::exists(arguments.result_file);
    throw_bad_input(arguments.result_file + (there ? " is no file" : " does not exist"),
                    "name a safetensors file");
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
