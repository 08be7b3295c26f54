// What another process has been doing, from outside: CPU time used, and whether it waits for
// nothing but the processor or the disk, or has been stopped.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace shardproof::sim::world {

double cpu_seconds_of(pid_t pid);  // all threads; 0 when it has gone
// Its threads that are ready to run or in uninterruptible sleep (state R or D): slow, not hung.
int64_t runnable_threads(pid_t pid);
bool is_stopped(pid_t pid);  // by a signal or a debugger (state T or t)

}  // namespace shardproof::sim::world
