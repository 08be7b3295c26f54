// Commands that are Python: score plants faults in the tests of a PyTorch program, mutants plants
// the known bugs in this program and runs the gate on each.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "sim/cli/commands.h"
#include "sim/lint/scenario_files.h"

namespace shardproof::sim {

namespace {

constexpr const char* kScoreScript = R"(
import sys
try:
    from shardproof.score import command
except ImportError as error:
    fix = f"install the package for {sys.executable}: pip install ./python"
    print(f"shardproof: {error}; {fix}", file=sys.stderr)
    sys.exit(2)
sys.exit(command.main(sys.argv[1:]))
)";

// Replaces this process by python3 with these words behind it.
[[noreturn]] void exec_python(std::vector<std::string> words) {
  words.insert(words.begin(), "python3");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("python3 cannot be started: {}", std::strerror(errno)),
               .fix = "install Python 3"});
}

}  // namespace

int score_command(const std::vector<std::string>& words_of_command) {
  std::vector<std::string> words = {"-c", kScoreScript};
  words.insert(words.end(), words_of_command.begin() + 1, words_of_command.end());
  exec_python(std::move(words));
}

int mutants_command(const MutantArguments& arguments) {
  const std::string script = find_in_repository("tests/mutants/run.py");
  if (script.empty()) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = "tests/mutants/run.py is not here",
                 .fix = "run it from the repository"});
  }
  std::vector<std::string> words = {"-B", script, "--jobs", std::to_string(arguments.jobs)};
  const auto add = [&words](const char* name, const std::string& value) {
    words.insert(words.end(), {name, value});
  };
  if (!arguments.filter.empty()) add("--filter", arguments.filter);
  if (arguments.sample > 0) add("--sample", std::to_string(arguments.sample));
  if (arguments.seed > 0) add("--seed", std::to_string(arguments.seed));
  if (arguments.check) words.emplace_back("--check");
  if (arguments.changed) words.emplace_back("--changed");
  if (arguments.changed && !arguments.changed->empty()) words.push_back(*arguments.changed);
  exec_python(std::move(words));
}

}  // namespace shardproof::sim
