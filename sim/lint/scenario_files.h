// The scenario files that a command line names.
#pragma once

#include <string>
#include <vector>

namespace shardproof::sim::lint {

// A path in the repository, relative to the current folder or else to the program; "" when absent.
std::string find_in_repository(const std::string& relative_path);

// The path itself, or the program's own where "scenarios/.." is not in the current folder.
std::string own_scenario(const std::string& path);

// The scenario files of `paths`, sorted: files themselves, and *.yaml below folders. Without paths
// those of the repository. Throws Error(kBadInput) for a path that is no scenario.
std::vector<std::string> find_scenario_files(const std::vector<std::string>& paths);

}  // namespace shardproof::sim::lint
