// The worlds that this machine can run.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sim/case/world_spec.h"
#include "sim/cli/arguments.h"
#include "sim/run/limits.h"

namespace shardproof::sim::cli {

// A sentence that says why a world cannot run here and how to fix that; "" when it can.
std::string why_not(Backend backend, DeviceKind device);
// Throws Error(kBadInput) with that sentence.
void require_can_run(Backend backend, DeviceKind device);
// The backends that can run here on that device, in the order in which `run` uses them.
std::vector<Backend> runnable_backends(DeviceKind device);
// What the worlds of a command may take; nothing with --ignore-limits.
std::optional<run::MachineLimits> limits_for(const WorldArguments& arguments);

}  // namespace shardproof::sim::cli
