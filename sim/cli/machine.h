// The worlds that this machine can run.
#pragma once

#include <string>
#include <vector>

namespace shardproof::sim {

// A sentence that says why a world cannot run here and how to fix that; "" when it can.
std::string why_not(const std::string& backend, const std::string& device);
// The backends that can run here on that device, in the order in which `run` uses them.
std::vector<std::string> runnable_backends(const std::string& device);

}  // namespace shardproof::sim
