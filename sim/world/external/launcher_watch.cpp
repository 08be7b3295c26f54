#include "sim/world/external/launcher_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <string_view>
#include <thread>
#include <utility>

#include "sim/world/process/pidfd.h"

namespace shardproof::sim::world {
namespace {

constexpr std::chrono::seconds kToWriteResults{10};

bool is_watched(const ExternalPlace& place) {
  if (place.launcher == "torchrun") return place.has_agent;
  constexpr std::array<std::string_view, 3> kOthers = {"mpirun", "srun", "mpiexec"};
  return std::find(kOthers.begin(), kOthers.end(), place.launcher) != kOthers.end();
}

}  // namespace

OwnedFd watch_launcher(const ExternalPlace& place) {
  const pid_t parent = ::getppid();  // 0: it is outside of this container
  if (!is_watched(place) || parent <= 1) return {};
  return pidfd_of(parent);
}

void say_launcher_gone(const ExternalPlace& place) {
  std::signal(SIGPIPE, SIG_IGN);
  const std::string text = fmt::format(
      "shardproof: rank {}: {}, which started it, has gone; it ends\n", place.rank, place.launcher);
  ::dprintf(STDERR_FILENO, "%s", text.c_str());
}

void interrupt_without_launcher(const ExternalPlace& place, OwnedFd launcher) {
  if (!launcher.valid()) return;
  std::signal(SIGPIPE, SIG_IGN);  // a line to the launcher that has just gone ends nothing
  std::thread([place, launcher = std::move(launcher)] {
    pollfd wait{launcher.get(), POLLIN, 0};
    while (::poll(&wait, 1, -1) < 0 && errno == EINTR) {
    }
    if (wait.revents == 0) return;
    say_launcher_gone(place);
    ::kill(::getpid(), SIGTERM);
    std::this_thread::sleep_for(kToWriteResults);
    ::kill(::getpid(), SIGTERM);
  }).detach();
}

}  // namespace shardproof::sim::world
