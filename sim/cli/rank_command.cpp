// rank: one rank of a world that torchrun, srun or mpirun started. Rank 0's process also holds
// control and the judge; the others only serve.
#include <fmt/format.h>

#include "base/count_of.h"
#include "base/error.h"
#include "base/failure.h"
#include "sim/cli/commands.h"
#include "sim/cli/machine.h"
#include "sim/cli/run_cases.h"
#include "sim/world/external/external_rank.h"
#include "sim/world/external/shared_secret.h"

namespace shardproof::sim::cli {

namespace {

Backend backend_of(const RunArguments& arguments, DeviceKind device) {
  if (arguments.backends.empty())
    return device == DeviceKind::kCuda ? Backend::kNccl : Backend::kGloo;
  const auto backend = enum_of<Backend>(arguments.backends.front());
  if (backend == Backend::kEmulated || arguments.backends.size() > 1) {
    throw_bad_input(fmt::format("{} cannot run here", backend),
                    "ranks of a launcher are processes; use --backend gloo or nccl");
  }
  require_can_run(backend, device);
  return backend;
}

int run_selected(const RunArguments& given, const CommandLine& command, world::WorldPool& pool) {
  const RunArguments arguments = as_they_ran(given);
  Selection selection = select_cases(arguments);
  if (selection.cases.empty() && !selection.skipped.empty()) {
    throw_bad_input(
        fmt::format("no selected case is for {}", count_of(*arguments.world_size, "rank")),
        "start as many ranks as the mesh has, or choose other cases");
  }
  return run_cases(arguments, command, std::move(selection), pool);
}

}  // namespace

int rank_command(const RunArguments& given, const CommandLine& command,
                 const world::WorkerFunctions& functions) {
  world::ExternalPlace place = world::external_place(world::process_environment());
  place.secret = world::shared_secret(place, world::process_environment());
  RunArguments arguments = given;
  const auto device = enum_of<DeviceKind>(given.world.device);
  const Backend backend = backend_of(given, device);
  arguments.backends = {name_of(backend)};
  arguments.jobs = 1;
  arguments.world_size = place.world_size;
  return run_on_external_ranks(place, backend, device, functions, [&](world::WorldPool& pool) {
    return run_selected(arguments, command, pool);
  });
}

}  // namespace shardproof::sim::cli
