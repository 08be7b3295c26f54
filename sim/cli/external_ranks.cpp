#include "sim/cli/external_ranks.h"

#include <iostream>

#include "base/error.h"
#include "base/failure.h"
#include "sim/cli/commands.h"
#include "sim/world/external/external_rank.h"
#include "sim/world/external/launcher_watch.h"

namespace shardproof::sim {

int run_on_external_ranks(const ExternalPlace& place, Backend backend, DeviceKind device,
                          const WorkerFunctions& functions,
                          const std::function<int(WorldPool&)>& run) {
  if (place.rank != 0) serve_external_rank(place, backend, device, functions);
  OwnedFd launcher = watch_launcher(place);
  ExternalHost host(place, backend, device, functions);
  WorldPool pool(functions);
  interrupt_without_launcher(place, std::move(launcher));
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

}  // namespace shardproof::sim
