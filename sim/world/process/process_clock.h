// What another process has been doing, from outside: CPU time used, and whether it waits for
// nothing but the processor or the disk, or has been stopped.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace shardproof::sim::world {

double cpu_seconds_of(pid_t pid);  // all threads; 0 when it has gone
// Its threads that are ready to run or in uninterruptible sleep (state R or D): slow, not hung.
int64_t runnable_threads(pid_t pid);
bool is_stopped(pid_t pid);  // by a signal or a debugger (state T or t)

// How a process ended, in words.

// "was killed by SIGKILL", "exited with status 3". `status` as waitpid gives it.
std::string exit_text(int status);
// The last `count` lines of `text` that are not blank.
std::string last_lines(const std::string& text, int count);

}  // namespace shardproof::sim::world
