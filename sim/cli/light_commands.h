// Of the commands (commands.h) those that need no LibTorch: shardproof-light has them too.
#pragma once

#include <string>
#include <vector>

#include "sim/cli/arguments.h"

namespace shardproof::sim::cli {

int report_command(const ReportArguments& arguments);
int mutants_command(const MutantArguments& arguments);
// Whether the Python package has the command, to which `words` go.
bool is_of_package(const std::string& command);
int package_command(const std::vector<std::string>& words);

// Replaces this process by a program and its arguments. Throws with this fix when it cannot start.
[[noreturn]] void exec_program(std::vector<std::string> words, const std::string& fix);
// The whole path of a script that lies in the repository only.
std::string script_of_repository(const std::string& path);
// On PATH. The command of a wheel puts its own there.
inline constexpr const char* kPython = "python3";
// The Python of the repository that holds the script; kPython where it has none.
std::string python_beside(const std::string& script);

}  // namespace shardproof::sim::cli
