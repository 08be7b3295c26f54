// The options of `mutants`.
#include <CLI/CLI.hpp>

#include "sim/cli/command_options.h"

namespace shardproof::sim::cli {

void add_mutant_options(CLI::App& app, MutantArguments& mutants) {
  app.add_option("--filter", mutants.filter, "Only rows whose id or source holds this text");
  app.add_option("--jobs,-j", mutants.jobs, "Gates at the same time")->check(CLI::Range(1, 64));
  app.add_option("--sample", mutants.sample, "Only so many rows, drawn by --seed")
      ->check(CLI::Range(1, 100000));
  app.add_option("--seed", mutants.seed, "Of the sample")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 62));
  app.add_flag("--check,--check-patches", mutants.check,
               "Only whether every row can be planted; builds nothing");
  app.add_option_function<std::string>(
         "--changed", [&mutants](const std::string& base) { mutants.changed = base; },
         "Only rows whose function differs from that of a commit (default: where the branch "
         "left origin/main, else HEAD~1)")
      ->expected(0, 1)
      ->type_name("BASE");
}

}  // namespace shardproof::sim::cli
