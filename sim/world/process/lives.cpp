#include "sim/world/process/lives.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>

#include "base/error.h"
#include "sim/world/process/pidfd.h"

namespace shardproof::sim::world {
namespace {

constexpr int kLost = 3;         // failed: nobody is left to say more
constexpr int kLongestStop = 4;  // seconds

bool is_stopped(pid_t child) {
  siginfo_t info = {};
  const int options = WSTOPPED | WNOHANG | WNOWAIT;
  return ::waitid(P_PID, static_cast<id_t>(child), &info, options) == 0 && info.si_pid == child;
}

// Whether `end` was readable before the child had ended. A child that a signal has stopped hears of
// nothing, and the other ranks wait for it, so it is killed after a while.
bool ends_before(pid_t child, int end) {
  const OwnedFd life = pidfd_of(child);
  if (!life.valid()) return false;
  pollfd waits[2] = {{life.get(), POLLIN, 0}, {end, POLLIN, 0}};
  for (int stopped_s = 0;;) {
    const int ready = TEMP_FAILURE_RETRY(::poll(waits, 2, 1000));
    if (ready != 0) return ready > 0 && waits[0].revents == 0;
    stopped_s = is_stopped(child) ? stopped_s + 1 : 0;
    if (stopped_s < kLongestStop) continue;
    ::dprintf(STDERR_FILENO,
              "shardproof: process %d of a rank was stopped for %d s; it is killed\n",
              static_cast<int>(child), stopped_s);
    ::kill(child, SIGKILL);
    stopped_s = 0;
  }
}

int status_of_life(const std::function<void(int64_t life)>& live, int64_t life, int end,
                   const std::function<void()>& on_end) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  SHARDPROOF_ASSERT(child >= 0, "a rank cannot be forked");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kLost);
    live(life);
    ::_exit(kLost);
  }
  if (ends_before(child, end)) {
    on_end();
    ::_exit(kLost);
  }
  int status = 0;
  if (TEMP_FAILURE_RETRY(::waitpid(child, &status, 0)) < 0) ::_exit(kLost);
  return status;
}

}  // namespace

void run_lives(const std::function<void(int64_t life)>& live, int end,
               const std::function<void()>& on_end) {
  for (int64_t life = 0;; ++life) {
    const int status = status_of_life(live, life, end, on_end);
    if (WIFEXITED(status) && WEXITSTATUS(status) != kNextLife) ::_exit(WEXITSTATUS(status));
  }
}

}  // namespace shardproof::sim::world
