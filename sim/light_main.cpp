// shardproof-light: the commands that need no LibTorch, before the program is built.
#include <filesystem>
#include <iostream>

#include "base/error.h"
#include "base/failure.h"
#include "base/read_text.h"
#include "sim/cli/arguments.h"
#include "sim/cli/light_commands.h"
#include "sim/cli/uses/file_commands.h"
#include "sim/cli/version.h"
#include "sim/lint/case_reader.h"
#include "sim/uses/proofs/built_in_rows.h"

namespace shardproof::sim::cli {

std::string version_text() { return "shardproof " SHARDPROOF_VERSION " (without LibTorch)"; }

namespace {

int run_judge(const CheckArguments& arguments) {
  if (const std::optional<int> status = judge_files(arguments)) return *status;
  const std::string answers =
      (std::filesystem::path(arguments.case_path) / "expected.safetensors").string();
  throw Error({.kind = ErrorKind::kBadInput,
               .what = "computing the golden of " + arguments.case_path +
                       " needs LibTorch, without which this small program is built",
               .fix = std::filesystem::exists(answers)
                          ? "compare with the case's answers: --golden " + answers +
                                ", or run ./shardproof build in a clone"
                          : "run ./shardproof build in a clone"});
}

const CommandNames kHere = {"judge", "lint", "logprobs", "report", "version", "model", "score"};

int dispatch(const Arguments& arguments) {
  if (arguments.command == "judge") return run_judge(arguments.check);
  if (arguments.command == "lint") {
    return lint::lint(arguments.run.paths, proofs::built_in_rows());
  }
  if (arguments.command == "logprobs") return logprobs_command(arguments.logprobs);
  if (arguments.command == "report") return report_command(arguments.report);
  if (arguments.command == "version") {
    std::cout << version_text() << '\n';
    return 0;
  }
  throw_bad_input(arguments.command + " needs LibTorch, without which this program is built",
                  "run ./shardproof build in a clone");
}

}  // namespace
}  // namespace shardproof::sim::cli

int main(int argc, char** argv) {
  using namespace shardproof::sim::cli;
  if (argc > 1 && is_of_package(argv[1])) {
    return shardproof::run_or_say_why([&] { return package_command({argv + 1, argv + argc}); });
  }
  return run_command_line(argc, argv, dispatch, kHere);
}
