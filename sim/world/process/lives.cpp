#include "sim/world/process/lives.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "base/error.h"

namespace shardproof::sim {
namespace {

constexpr int kLost = 3;  // failed: nobody is left to say more

int status_of_life(const std::function<void(int64_t life)>& live, int64_t life) {
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  SHARDPROOF_ASSERT(child >= 0, "a rank cannot be forked");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(kLost);
    live(life);
    ::_exit(kLost);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) ::_exit(kLost);
  }
  return status;
}

}  // namespace

void run_lives(const std::function<void(int64_t life)>& live) {
  for (int64_t life = 0;; ++life) {
    const int status = status_of_life(live, life);
    if (WIFEXITED(status) && WEXITSTATUS(status) != kNextLife) ::_exit(WEXITSTATUS(status));
  }
}

}  // namespace shardproof::sim
