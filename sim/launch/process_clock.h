// What another process has been doing, from outside: CPU time used, and whether it waits for nothing
// but the processor or the disk.
#pragma once

#include <sys/types.h>

namespace shardproof::sim {

double cpu_seconds_of(pid_t pid);     // all threads; 0 when it has gone
// Some thread of it is ready to run or in uninterruptible sleep (state R or D): slow, not hung.
bool is_runnable(pid_t pid);

}  // namespace shardproof::sim
