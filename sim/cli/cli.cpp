#include "sim/cli/cli.h"

#include <fmt/format.h>

#include <filesystem>
#include <functional>
#include <iostream>
#include <sstream>

#include "base/error.h"
#include "base/shortage.h"
#include "base/utf8.h"
#include "sim/cli/arguments.h"
#include "sim/cli/commands.h"
#include "sim/cli/version.h"
#include "sim/lint/lint.h"

namespace shardproof::sim {

namespace {

constexpr size_t kMaxMessageLine = 1200;  // bytes

CommandLine command_line(int argc, char** argv) {
  CommandLine line{.text = "shardproof", .words = {}};
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const bool plain = !word.empty() && word.find_first_of(" \t\n'\"[]*?$&;|<>(){}\\") == word.npos;
    line.text += plain ? " " + word : " '" + word + "'";
    line.words.push_back(word);
  }
  return line;
}

// Commands that start workers get the pool: it forks the zygote before anything else happens.
// `rank` makes its own, after its ranks.
int dispatch(const Arguments& arguments, const CommandLine& line,
             const WorkerFunctions& functions) {
  const std::string& command = arguments.command;
  if (command == "list") return list_command(arguments.run);
  if (command == "lint") return lint(arguments.run.paths, arguments.run.workloads);
  if (command == "describe") return describe_command(arguments.run);
  if (command == "calls") return calls_command(arguments.run, functions);
  if (command == "report") return report_command(arguments.folder);
  if (command == "compare-runs") {
    return compare_runs_command(arguments.folder, arguments.other_folder);
  }
  if (command == "logprobs") return logprobs_command(arguments.logprobs);
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
  if (command == "rank") return rank_command(arguments.run, line, functions);
  WorldPool pool(functions);
  if (command == "run") return run_command(arguments.run, line, pool);
  if (command == "check") return check_command(arguments.check, line, pool);
  if (command == "judge") return judge_command(arguments.check, pool);
  if (command == "golden") return golden_command(arguments.check, pool);
  SHARDPROOF_ASSERT(false, "no command " + command);
}

}  // namespace

int exit_status_of(const Error& error) {
  if (error.kind() == ErrorKind::kRefused) return 4;
  return error.kind() == ErrorKind::kBadInput ? 2 : 3;
}

namespace {

// The JSON library begins its messages with "[json.exception.type_error.302] ".
std::string without_json_codes(std::string message) {
  for (size_t at = message.find("[json.exception."); at != message.npos;
       at = message.find("[json.exception.", at)) {
    const size_t end = message.find("] ", at);
    if (end == message.npos) break;
    message.erase(at, end + 2 - at);
  }
  return message;
}

// A message may quote a file or an argument: each of its lines is cut, and fit for a terminal.
std::string shown(const std::string& message) {
  std::string text;
  std::istringstream lines(without_json_codes(message));
  for (std::string line; std::getline(lines, line);) {
    text += (text.empty() ? "" : "\n") + printable(line, kMaxMessageLine);
  }
  return text;
}

// Prints the exception of `run`, if any, and returns its exit status.
int report_failure(const std::function<int()>& run) {
  try {
    return run();
  } catch (const Error& error) {
    std::cerr << "shardproof: " << shown(error.what()) << '\n';
    return exit_status_of(error);
  } catch (const std::filesystem::filesystem_error& error) {
    std::cerr << fmt::format("shardproof: {}: {}; check the path and its permissions\n",
                             shown(error.path1().string()), error.code().message());
    return 2;
  } catch (const std::exception& error) {
    if (const std::string shortage = shortage_text(error); !shortage.empty()) {
      std::cerr << "shardproof: " << shortage << '\n';
      return 2;
    }
    std::cerr << "shardproof: a fault in shardproof itself: " << error.what() << '\n';
    return 5;
  }
}

}  // namespace

int run_cli(int argc, char** argv, const WorkerFunctions& functions,
            const std::vector<KnownWorkload>& workloads) {
  return report_failure([&] {
    ParsedArguments parsed = parse_arguments(argc, argv);
    (parsed.status == 0 ? std::cout : std::cerr) << parsed.text;
    if (!parsed.arguments) return parsed.status;
    parsed.arguments->run.workloads = parsed.arguments->check.workloads = workloads;
    const int status = dispatch(*parsed.arguments, command_line(argc, argv), functions);
    std::cout.flush();
    return std::cout ? status : 5;
  });
}

}  // namespace shardproof::sim
