#include "sim/world/nodes/namespaces.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "sim/world/nodes/netlink.h"
#include "sim/world/process/wire.h"

namespace shardproof::sim::world {
namespace {

bool write_to(const char* path, const std::string& text) {
  const OwnedFd file(::open(path, O_WRONLY | O_CLOEXEC));
  return ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Users and groups have the numbers in it that they have outside.
bool enter_new_user_namespace() {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  return ::unshare(CLONE_NEWUSER) == 0 && write_to("/proc/self/setgroups", "deny") &&
         write_to("/proc/self/uid_map", fmt::format("{0} {0} 1", user)) &&
         write_to("/proc/self/gid_map", fmt::format("{0} {0} 1", group));
}

const char* const kTapDevice = "/dev/net/tun";

// A TAP device in the namespace of this process; it is there as long as the descriptor.
OwnedFd make_tap(const std::string& name) {
  OwnedFd tap(::open(kTapDevice, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  if (tap.valid() && ::ioctl(tap.get(), TUNSETIFF, &request) != 0) tap.reset();
  return tap;
}

// In a process of its own: makes the namespaces and sends them. Returns the number of the error.
int make_and_send(const std::vector<std::vector<std::string>>& taps, int socket) {
  if (::unshare(CLONE_NEWNET) != 0) {
    const int error = errno;
    if (error != EPERM) return error;
    if (!enter_new_user_namespace()) return errno;
    if (::unshare(CLONE_NEWNET) != 0) return errno;
    const OwnedFd user(::open("/proc/self/ns/user", O_RDONLY | O_CLOEXEC));
    if (!user.valid()) return errno;
    send_datagram(socket, "user", {user.get()});
  }
  for (size_t i = 0; i < taps.size(); ++i) {
    if (i > 0 && ::unshare(CLONE_NEWNET) != 0) return errno;
    const OwnedFd space(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
    const OwnedFd netlink = Netlink::open_socket();
    if (!space.valid() || !netlink.valid()) return errno;
    send_datagram(socket, "network", {space.get(), netlink.get()});
    for (const std::string& name : taps[i]) {
      const OwnedFd tap = make_tap(name);
      if (!tap.valid()) {
        const int error = errno;
        send_datagram(socket, "no tap", {});
        return error;
      }
      send_datagram(socket, "tap", {tap.get()});
    }
  }
  return 0;
}

[[noreturn]] void refuse(int error) {
  throw_bad_input(fmt::format("nodes over Gloo are network namespaces, and this process may "
                              "not make them ({})",
                              std::strerror(error)),
                  "run as root, or allow user namespaces (sysctl user.max_user_namespaces, in "
                  "a container --cap-add SYS_ADMIN --cap-add NET_ADMIN), or take --backend "
                  "emulated");
}

[[noreturn]] void refuse_taps(int error) {
  throw_bad_input(fmt::format("links with a delay or with lost packets are TAP devices, and "
                              "this process may not make them ({}: {})",
                              kTapDevice, std::strerror(error)),
                  "load the kernel's module tun (in a container --device /dev/net/tun), leave "
                  "the delay and the loss out, or take --backend emulated");
}

}  // namespace

Namespaces make_namespaces(const std::vector<std::vector<std::string>>& taps) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) refuse(errno);
  OwnedFd ours(ends[0]), theirs(ends[1]);
  const pid_t maker = ::fork();
  if (maker < 0) refuse(errno);
  if (maker == 0) {
    ours.reset();
    const int error = make_and_send(taps, theirs.get());
    ::_exit(error);  // numbers of errors are below 256
  }
  theirs.reset();
  Namespaces made;
  Datagram sent;
  bool has_taps = true;
  while (receive_datagram(ours.get(), false, sent) == DatagramStatus::kReceived) {
    if (sent.bytes == "user" && sent.fds.size() == 1) made.user = std::move(sent.fds[0]);
    if (sent.bytes == "network" && sent.fds.size() == 2) {
      made.networks.push_back({std::move(sent.fds[0]), std::move(sent.fds[1])});
    }
    if (sent.bytes == "tap" && sent.fds.size() == 1 && !made.networks.empty()) {
      made.networks.back().taps.push_back(std::move(sent.fds[0]));
    }
    has_taps = has_taps && sent.bytes != "no tap";
  }
  int status = 0;
  while (::waitpid(maker, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    const int error = WIFEXITED(status) ? WEXITSTATUS(status) : EINTR;
    if (has_taps) refuse(error);
    refuse_taps(error);
  }
  if (made.networks.size() != taps.size()) refuse(EMFILE);
  return made;
}

}  // namespace shardproof::sim::world
