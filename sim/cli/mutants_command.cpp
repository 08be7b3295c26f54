// mutants: runs the Python script that plants the known bugs and runs the gate on each.
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

int mutants_command(const MutantArguments& arguments) {
  const std::string script = find_in_repository("tests/mutants/run.py");
  if (script.empty()) {
    throw Error({.kind = ErrorKind::kBadInput,
                 .what = "tests/mutants/run.py is not here",
                 .fix = "run it from the repository"});
  }
  std::vector<std::string> words = {"python3", "-B", script, "--jobs",
                                    std::to_string(arguments.jobs)};
  const auto add = [&words](const char* name, const std::string& value) {
    words.insert(words.end(), {name, value});
  };
  if (!arguments.filter.empty()) add("--filter", arguments.filter);
  if (arguments.sample > 0) add("--sample", std::to_string(arguments.sample));
  if (arguments.seed > 0) add("--seed", std::to_string(arguments.seed));
  if (arguments.check) words.emplace_back("--check");
  if (arguments.changed) words.emplace_back("--changed");
  if (arguments.changed && !arguments.changed->empty()) words.push_back(*arguments.changed);
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  throw Error({.kind = ErrorKind::kBadInput,
               .what = fmt::format("python3 cannot be started: {}", std::strerror(errno)),
               .fix = "install Python 3"});
}

}  // namespace shardproof::sim
