// Whether the launcher's process that started this one is still there. A rank whose launcher was
// killed ends: nobody reads its exit status, and it would hold its ports and devices.
#pragma once

#include "base/owned_fd.h"
#include "sim/world/external/external_place.h"

namespace shardproof::sim::world {

// Readable once the parent of this process has gone. Invalid where nobody is watched: a script that
// sets the ranks' variables itself may end before them, and old kernels have no such descriptor.
OwnedFd watch_launcher(const ExternalPlace& place);

// Says so on stderr, which may have gone with the launcher.
void say_launcher_gone(const ExternalPlace& place);

// In rank 0's process: interrupts the run as Ctrl-C does once the launcher has gone, and ends it 10
// seconds later. On a thread of its own, for the rest of the process.
void interrupt_without_launcher(const ExternalPlace& place, OwnedFd launcher);

}  // namespace shardproof::sim::world
