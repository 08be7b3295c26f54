// The worlds that this machine can run.
#pragma once

#include <string>
#include <vector>

#include "sim/case/world_spec.h"

namespace shardproof::sim {

// A sentence that says why a world cannot run here and how to fix that; "" when it can.
std::string why_not(Backend backend, DeviceKind device);
// The backends that can run here on that device, in the order in which `run` uses them.
std::vector<Backend> runnable_backends(DeviceKind device);
// A path in the repository, relative to the current folder or else to the program; "" when absent.
std::string find_in_repository(const std::string& relative_path);

}  // namespace shardproof::sim
