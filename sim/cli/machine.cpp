#include "sim/cli/machine.h"

#include <fmt/format.h>

#include <iostream>

#include "base/error.h"
#include "base/failure.h"
#include "comm/cuda_device.h"
#include "comm/nccl_backend.h"
#include "sim/world/external/external_rank.h"
#include "sim/world/external/launcher_watch.h"

namespace shardproof::sim::cli {

std::string why_not(Backend backend, DeviceKind device) {
  const bool cuda = device == DeviceKind::kCuda;
  if (backend == Backend::kGloo && cuda) return "Gloo ranks run on CPU; use --device cpu";
  if (backend == Backend::kNccl && !cuda) return "NCCL moves GPU memory only; add --device cuda";
  if (backend == Backend::kNccl) return why_no_nccl();
  return cuda ? why_no_cuda() : "";
}

void require_can_run(Backend backend, DeviceKind device) {
  const std::string reason = why_not(backend, device);
  if (reason.empty()) return;
  throw_bad_input(fmt::format("{} ranks with tensors on {} cannot run here", backend, device),
                  reason);
}

std::vector<Backend> runnable_backends(DeviceKind device) {
  std::vector<Backend> backends;
  for (const Backend backend : {Backend::kEmulated, Backend::kGloo, Backend::kNccl}) {
    if (why_not(backend, device).empty()) backends.push_back(backend);
  }
  return backends;
}

std::optional<run::MachineLimits> limits_for(const WorldArguments& arguments) {
  return arguments.ignore_limits ? std::nullopt : std::optional(run::machine_limits());
}

namespace {

// One line for each host: ranks that do not come are otherwise seen after minutes only.
void say_what_it_waits_for(const world::ExternalPlace& place) {
  if (place.world_size == 1 || place.local_rank != 0) return;
  std::cerr << fmt::format("shardproof: rank {} of {} waits for {} at {}:{}\n", place.rank,
                           place.world_size, place.rank == 0 ? "the others" : "rank 0",
                           place.master_addr, place.master_port);
}

}  // namespace

int run_on_external_ranks(const world::ExternalPlace& place, Backend backend, DeviceKind device,
                          const world::WorkerFunctions& functions,
                          const std::function<int(world::WorldPool&)>& run) {
  say_what_it_waits_for(place);
  if (place.rank != 0) world::serve_external_rank(place, backend, device, functions);
  OwnedFd launcher = world::watch_launcher(place);
  world::ExternalHost host(place, backend, device, functions);
  world::WorldPool pool(functions);
  world::interrupt_without_launcher(place, std::move(launcher));
  pool.adopt(host, backend, device);
  int status = 0;
  try {
    status = run(pool);
  } catch (const Error& error) {
    status = exit_status_of(error);
    print_failure(error.what());
  }
  std::cout.flush();
  const std::string refusals = host.refusals();
  if (!refusals.empty()) print_failure(refusals);
  pool.dismiss(status);
  return status;
}

}  // namespace shardproof::sim::cli
