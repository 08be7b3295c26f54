// What `shardproof --help` says besides each command's own line.
#pragma once

#include <string>

namespace shardproof::sim::cli {

// The heading under which --help lists this command.
std::string group_of(const std::string& command);

// The end of --help: some commands to begin with, and the exit statuses.
std::string examples_and_statuses();

}  // namespace shardproof::sim::cli
