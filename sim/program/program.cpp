#include "sim/program/program.h"

#include "sim/cli/uses/uses_commands.h"
#include "sim/uses/validate/validate_rank.h"

namespace shardproof::sim::program {

int run_program(int argc, char** argv, const proofs::Workloads& workloads) {
  const auto rank_main = [](const world::RankMain& run_case) -> world::RankMain {
    return [run_case](const CaseSpec& spec, const world::RankEnv& env) {
      return spec.workload == validate::kValidateWorkload
                 ? validate::validate_rank(spec, env, run_case)
                 : run_case(spec, env);
    };
  };
  return start_program(argc, argv, workloads,
                       {.commands = cli::uses_commands(), .rank_main = rank_main});
}

}  // namespace shardproof::sim::program
