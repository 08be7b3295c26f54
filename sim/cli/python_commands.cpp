// Commands that are Python: those of the Python package, and mutants, which plants the known bugs
// in this program and runs the gate on each.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.h"
#include "sim/cli/light_commands.h"
#include "sim/lint/case_reader.h"

namespace shardproof::sim::cli {

namespace {

constexpr const char* kPackage = R"(
import sys
try:
    from shardproof import command
except ImportError as error:
    fix = f"install the package for {sys.executable}: pip install ./python"
    print(f"shardproof: {error}; {fix}", file=sys.stderr)
    sys.exit(2)
sys.exit(command.main(sys.argv[1:]))
)";

constexpr const char* kInstall = "install Python 3";

}  // namespace

std::string script_of_repository(const std::string& path) {
  std::string script = lint::find_in_repository(path);
  if (script.empty()) throw_bad_input(path + " is not here", "run it from the repository");
  return script;
}

std::string python_beside(const std::string& script) {
  const auto own = std::filesystem::path(script).parent_path().parent_path() / ".venv/bin/python";
  return std::filesystem::exists(own) ? own.string() : kPython;
}

void exec_program(std::vector<std::string> words, const std::string& fix) {
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  throw_bad_input(fmt::format("{} cannot be started: {}", words[0], std::strerror(errno)), fix);
}

bool is_of_package(const std::string& command) { return command == "score" || command == "model"; }

int package_command(const std::vector<std::string>& words_of_command) {
  std::vector<std::string> words = {kPython, "-c", kPackage};
  words.insert(words.end(), words_of_command.begin(), words_of_command.end());
  exec_program(std::move(words), kInstall);
}

int mutants_command(const MutantArguments& arguments) {
  std::vector<std::string> words = {kPython, "-B", script_of_repository("tests/mutants/run.py"),
                                    "--jobs", std::to_string(arguments.jobs)};
  const auto add = [&words](const char* name, const std::string& value) {
    words.insert(words.end(), {name, value});
  };
  if (!arguments.filter.empty()) add("--filter", arguments.filter);
  if (arguments.sample > 0) add("--sample", std::to_string(arguments.sample));
  if (arguments.seed > 0) add("--seed", std::to_string(arguments.seed));
  if (arguments.check) words.emplace_back("--check");
  if (arguments.changed) words.emplace_back("--changed");
  if (arguments.changed && !arguments.changed->empty()) words.push_back(*arguments.changed);
  exec_program(std::move(words), kInstall);
}

}  // namespace shardproof::sim::cli
