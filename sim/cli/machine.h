// What this machine can run, and where the program finds its own files.
#pragma once

#include <string>
#include <vector>

namespace shardproof::sim {

// Why a world cannot run here, in one sentence with what to do; "" when it can.
std::string why_not(const std::string& backend, const std::string& device);
// The backends that can run here on that device, in the order in which a run takes them.
std::vector<std::string> runnable_backends(const std::string& device);
// A file or folder of the repository: below the current folder, or else above the program. "" none.
std::string find_in_repository(const std::string& relative_path);

}  // namespace shardproof::sim
