// rank: one rank of a world that torchrun, srun or mpirun started. Rank 0's process also holds
// control and the judge; the others only serve.
#include <fmt/format.h>

#include <iostream>

#include "base/error.h"
#include "sim/cli/commands.h"
#include "sim/cli/machine.h"
#include "sim/cli/run_cases.h"
#include "sim/world/external/external_rank.h"

namespace shardproof::sim {

namespace {

std::string backend_of(const RunArguments& arguments) {
  if (arguments.backends.empty()) return arguments.world.device == "cuda" ? "nccl" : "gloo";
  const std::string& backend = arguments.backends.front();
  const std::string reason = backend == "emulated" || arguments.backends.size() > 1
                                 ? "ranks of a launcher are processes; use --backend gloo or nccl"
                                 : why_not(backend, arguments.world.device);
  if (reason.empty()) return backend;
  throw Error({.kind = ErrorKind::kBadInput, .what = backend + " cannot run here", .fix = reason});
}

// One line for each host: ranks that do not come are otherwise seen after minutes only.
void say_what_it_waits_for(const ExternalPlace& place) {
  if (place.world_size == 1 || place.local_rank != 0) return;
  std::cerr << fmt::format("shardproof: rank {} of {} waits for {} at {}:{}\n", place.rank,
                           place.world_size, place.rank == 0 ? "the others" : "rank 0",
                           place.master_addr, place.master_port);
}

// Whatever happens here, the other ranks hear with which status to exit. What there is to say is
// said before: a launcher may end rank 0 as soon as another rank has exited.
int run_and_dismiss(const RunArguments& arguments, const CommandLine& command, WorldPool& pool) {
  int status = 0;
  try {
    Selection selection = select_cases(arguments);
    if (selection.cases.empty() && !selection.skipped.empty()) {
      throw Error({.kind = ErrorKind::kBadInput,
                   .what = fmt::format("no selected case is for {} ranks", *arguments.world_size),
                   .fix = "start as many ranks as the mesh has, or choose other cases"});
    }
    status = run_cases(arguments, command, std::move(selection), pool);
  } catch (const Error& error) {
    status = exit_status_of(error);
    std::cerr << "shardproof: " << error.what() << std::endl;
  }
  std::cout.flush();
  pool.dismiss(status);
  return status;
}

}  // namespace

int rank_command(const RunArguments& given, const CommandLine& command,
                 const WorkerFunctions& functions) {
  const ExternalPlace place = external_place(process_environment());
  RunArguments arguments = given;
  arguments.backends = {backend_of(given)};
  arguments.jobs = 1;
  arguments.world_size = place.world_size;
  const std::string& backend = arguments.backends.front();
  say_what_it_waits_for(place);
  if (place.rank != 0) serve_external_rank(place, backend, arguments.world.device, functions);
  ExternalHost host(place, backend, arguments.world.device, functions);
  WorldPool pool(functions);
  pool.adopt(host, backend, arguments.world.device);
  return run_and_dismiss(arguments, command, pool);
}

}  // namespace shardproof::sim
