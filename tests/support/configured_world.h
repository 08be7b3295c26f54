// Rank threads of an emulated world with its own settings.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/mesh_comm.h"
#include "sim/case/case_spec.h"
#include "sim/world/clock/rank_clock.h"
#include "sim/world/emulated/emulated_world.h"

namespace shardproof::tests {

// The objects that a rank of such a world can use.
struct ConfiguredRank {
  int64_t rank;
  MeshComm& comm;
  BackendFactory backend;  // for calls that bypass the communicators
  sim::world::RankClock& clock;
};

struct ConfiguredRuns {
  std::optional<sim::world::Finding> failure;
  std::vector<std::string> errors;  // per rank, "" where it returned
  std::vector<double> times_us;     // on the virtual clocks
  std::vector<std::vector<sim::Stretch>> timelines;
  std::optional<sim::ScheduleTrace> schedule = {};  // of an exact one
};

// Runs `body` on every rank, with its clock running, as one case of a new world.
ConfiguredRuns run_configured(const sim::WorldSpec& spec, const Mesh& mesh,
                              const std::function<void(ConfiguredRank&)>& body);

// The sum of the lengths of a timeline's entries of one kind.
double time_of(const std::vector<sim::Stretch>& timeline, sim::StretchKind kind);

}  // namespace shardproof::tests
