// The memory of this machine.
#pragma once

#include <unistd.h>

namespace shardproof {

// In GiB, whatever limits a process has.
inline double physical_memory_gib() {
  return static_cast<double>(::sysconf(_SC_PHYS_PAGES)) *
         static_cast<double>(::sysconf(_SC_PAGESIZE)) / (1 << 30);
}

}  // namespace shardproof
