// The worlds that this machine can run, and the paths of the program's own files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/cli/arguments.h"
#include "sim/run/limits.h"

namespace shardproof::sim {

// A sentence that says why a world cannot run here and how to fix that; "" when it can.
std::string why_not(const std::string& backend, const std::string& device);
// The backends that can run here on that device, in the order in which `run` uses them.
std::vector<std::string> runnable_backends(const std::string& device);
// What the worlds of a command may take; nothing with --ignore-limits.
std::optional<MachineLimits> limits_for(const WorldArguments& arguments);
// A path in the repository, relative to the current folder or else to the program; "" when absent.
std::string find_in_repository(const std::string& relative_path);

}  // namespace shardproof::sim
