#include "sim/cli/cli.h"

#include <filesystem>
#include <iostream>
#include <set>

#include "base/error.h"
#include "base/failure.h"
#include "sim/cli/arguments.h"
#include "sim/cli/commands.h"
#include "sim/cli/light_commands.h"
#include "sim/cli/version.h"
#include "sim/lint/case_reader.h"

namespace shardproof::sim::cli {

namespace fs = std::filesystem;

namespace {

constexpr int kInterruptedStatus = 130;

// A wheel's command is on PATH, and starts the program under its own name. Else the script of the
// repository starts it.
std::string program_command(const std::string& called) {
  if (fs::path(called).filename() == "shardproof") return "shardproof";
  std::error_code error;
  fs::path folder = fs::read_symlink("/proc/self/exe", error).parent_path();
  while (!error && folder.has_relative_path()) {
    const fs::path script = folder / "shardproof";
    if (fs::is_regular_file(script)) {
      return fs::equivalent(folder, ".", error) ? "./shardproof" : script.string();
    }
    folder = folder.parent_path();
  }
  return called;
}

CommandLine command_line(int argc, char** argv) {
  CommandLine line{.text = "shardproof", .words = {}, .program = program_command(argv[0])};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain = !word.empty() && word.find_first_of(" \t\n'\"[]*?$&;|<>(){}\\") == word.npos;
    line.text += plain ? " " + word : " '" + word + "'";
    line.words.push_back(word);
  }
  return line;
}

// The script ./shardproof starts the whole program for these, and builds it where it is missing.
void require_uses(const Arguments& arguments, const UsesCommands& uses) {
  static const std::set<std::string> of_uses = {"describe", "fuzz",   "judge",
                                                "logprobs", "shrink", "validate"};
  const std::string& command = arguments.command;
  const bool shrinks = command == "run" && arguments.run.shrink;
  if (uses.fuzz != nullptr || !(shrinks || of_uses.count(command) > 0)) return;
  throw_bad_input((shrinks ? "run --shrink" : command) +
                      " is not in this program, which is built for a first verdict",
                  "run ./shardproof, which builds the whole program for it");
}

// Commands that start workers get the pool: it forks the zygote before anything else happens.
// `rank` makes its own, after its ranks.
int dispatch(const Arguments& arguments, const CommandLine& line,
             const world::WorkerFunctions& functions, const UsesCommands& uses) {
  require_uses(arguments, uses);
  const std::string& command = arguments.command;
  if (command == "list") return list_command(arguments.run);
  if (command == "lint") return lint::lint(arguments.run.paths, arguments.run.workloads);
  if (command == "describe") return uses.describe(arguments.run);
  if (command == "calls") return calls_command(arguments.run, functions);
  if (command == "report") return report_command(arguments.report);
  if (command == "compare-runs") {
    return compare_runs_command(arguments.folder, arguments.other_folder);
  }
  if (command == "logprobs") return uses.logprobs(arguments.logprobs);
  if (command == "mutants") return mutants_command(arguments.mutants);
  if (command == "doctor") return doctor_command();
  if (command == "schema") return schema_command(arguments.run);
  if (command == "completion") {
    std::cout << bash_completion();
    return 0;
  }
  if (command == "version") {
    std::cout << version_text() << '\n';
    return 0;
  }
  if (command == "judge") {
    if (const std::optional<int> status = uses.judge_files(arguments.check)) return *status;
  }
  if (command == "validate") return uses.validate(arguments, line, functions);
  if (command == "rank") return rank_command(arguments.run, line, functions);
  world::WorldPool pool(functions);
  if (command == "run") {
    return run_command(arguments.run, line, pool, uses.shrink_unexpected);
  }
  if (command == "fuzz") return uses.fuzz(arguments, line, pool);
  pool.say_waits();
  if (command == "shrink") return uses.shrink(arguments, pool);
  if (command == "check") return check_command(arguments.check, line, pool);
  if (command == "judge") return judge_command(arguments.check, pool);
  SHARDPROOF_ASSERT(command == "golden", "no command " + command);
  return golden_command(arguments.check, pool);
}

// `run` and `rank` say it in their summaries.
int say_interrupted(const Arguments& arguments, int status) {
  const bool in_summary = arguments.command == "run" || arguments.command == "rank";
  if (status == kInterruptedStatus && !in_summary) print_failure("interrupted");
  return status;
}

}  // namespace

int run_cli(int argc, char** argv, const world::WorkerFunctions& functions,
            const std::vector<KnownWorkload>& workloads, const UsesCommands& uses) {
  // All words are those of the Python package, --help and -- too.
  if (argc > 1 && is_of_package(argv[1])) {
    return run_or_say_why([&] { return package_command(command_line(argc, argv).words); });
  }
  return run_command_line(argc, argv, [&](Arguments& arguments) {
    arguments.run.workloads = arguments.check.workloads = workloads;
    return say_interrupted(arguments,
                           dispatch(arguments, command_line(argc, argv), functions, uses));
  });
}

}  // namespace shardproof::sim::cli
