#include "sim/cli/external_ranks.h"

#include <iostream>

#include "base/error.h"
#include "base/failure.h"
#include "sim/cli/commands.h"
#include "sim/world/external/external_rank.h"
#include "sim/world/external/launcher_watch.h"

namespace shardproof::sim::cli {

int run_on_external_ranks(const world::ExternalPlace& place, Backend backend, DeviceKind device,
                          const world::WorkerFunctions& functions,
                          const std::function<int(world::WorldPool&)>& run) {
  if (place.rank != 0) world::serve_external_rank(place, backend, device, functions);
  world::OwnedFd launcher = world::watch_launcher(place);
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
