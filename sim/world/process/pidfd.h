// A descriptor of a process, readable once the process has ended.
#pragma once

extern "C" {  // glibc 2.36 forgets it
#include <sys/pidfd.h>
}

#include "base/owned_fd.h"

namespace shardproof::sim::world {

// Invalid where there is no such process, and on kernels before 5.3. A child that is not reaped yet
// keeps its number.
inline OwnedFd pidfd_of(pid_t process) { return OwnedFd(::pidfd_open(process, 0)); }

}  // namespace shardproof::sim::world
