// report: runs the Python script that draws a run folder.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "sim/cli/commands.h"
#include "sim/cli/machine.h"

namespace shardproof::sim {

namespace {

[[noreturn]] void bad_report(const std::string& what, const std::string& fix) {
  throw Error({.kind = ErrorKind::kBadInput, .what = what, .fix = fix});
}

}  // namespace

int report_command(const std::string& given) {
  const std::string folder = given.empty() ? "runs/latest" : given;
  if (!std::filesystem::is_regular_file(folder + "/results.json")) {
    bad_report(fmt::format("{} holds no results.json", folder),
               "name the folder of a finished run");
  }
  const std::string script = find_in_repository("reports/report.py");
  if (script.empty()) bad_report("reports/report.py is not here", "run it from the repository");
  std::string python = find_in_repository(".venv/bin/python");
  if (python.empty()) python = "python3";
  ::execlp(python.c_str(), python.c_str(), script.c_str(), folder.c_str(),
           static_cast<char*>(nullptr));
  bad_report(fmt::format("{} cannot be started: {}", python, std::strerror(errno)),
             "./shardproof doctor says what is missing");
}

}  // namespace shardproof::sim
