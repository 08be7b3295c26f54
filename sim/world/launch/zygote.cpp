#include "sim/world/launch/zygote.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/shortage.h"
#include "sim/world/process/pidfd.h"
#include "sim/world/process/process_clock.h"
#include "sim/world/process/wire.h"

namespace shardproof::sim::world {
namespace {

// A request without descriptors asks for a sign of life.
constexpr char kAreYouThere[] = "{}";
// With kLookPeriod: 2 s.
constexpr int kMostSilentLooksOfZygote = 8;

// From the zygote to control. A spawned notice carries a pidfd.
struct Notice {
  enum Kind : int32_t { kSpawned, kExited, kAlive } kind;
  int32_t pid;     // -1: could not fork
  int32_t status;  // wait status, or errno of a failed fork or of a missing pidfd
};

void die_with_parent(pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(0);  // it died before the line above
}

void close_all_but(int kept) {
  if (kept > 3) ::close_range(3, static_cast<unsigned>(kept) - 1, 0);
  ::close_range(static_cast<unsigned>(kept) + 1, ~0U, 0);
}

sigset_t only(int signal) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, signal);
  return set;
}

class ZygoteProcess {
 public:
  ZygoteProcess(const WorkerFunctions& functions, OwnedFd socket)
      : functions_(functions), socket_(std::move(socket)) {
    const sigset_t child = only(SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &child, nullptr);
    child_signal_ = OwnedFd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
  }

  [[noreturn]] void serve() {
    for (;;) {
      pollfd waits[2] = {{socket_.get(), POLLIN, 0}, {child_signal_.get(), POLLIN, 0}};
      if (::poll(waits, 2, -1) < 0 && errno != EINTR) end();
      if (waits[1].revents != 0) {
        signalfd_siginfo ignored;
        while (::read(child_signal_.get(), &ignored, sizeof(ignored)) > 0) {
        }
        reap(WNOHANG);
      }
      if (waits[0].revents != 0) answer_next();
    }
  }

 private:
  void answer_next() {
    Datagram request;
    if (receive_datagram(socket_.get(), true, request) != DatagramStatus::kReceived) end();
    if (request.fds.empty()) return tell({Notice::kAlive, 0, 0}, -1);
    spawn(std::move(request));
  }

  void spawn(Datagram request) {
    const nlohmann::json json = nlohmann::json::parse(request.bytes);
    WorkerFds fds;
    size_t next = 0;
    fds.channel = std::move(request.fds.at(next++));
    fds.output = std::move(request.fds.at(next++));
    for (const auto& [name, fd] : fds.optional()) {
      if (json.at(name).get<bool>()) *fd = std::move(request.fds.at(next++));
    }

    const pid_t zygote = ::getpid();
    const pid_t pid = ::fork();
    if (pid == 0) {
      die_with_parent(zygote);
      ::setpgid(0, 0);
      const sigset_t child = only(SIGCHLD);
      ::sigprocmask(SIG_UNBLOCK, &child, nullptr);
      socket_.reset();
      child_signal_.reset();
      worker_main(functions_, json.get<WorkerSetup>(), std::move(fds));
    }
    int error = pid < 0 ? errno : 0;
    OwnedFd pidfd;
    if (pid > 0) {
      children_.insert(pid);
      pidfd = pidfd_of(pid);  // it is not reaped yet: the number cannot be another's
      if (!pidfd.valid()) error = errno;
    }
    tell({Notice::kSpawned, pid, error}, pidfd.get());
  }

  void reap(int options) {
    int status = 0;
    for (pid_t pid = 0; (pid = ::waitpid(-1, &status, options)) > 0;) {
      children_.erase(pid);
      tell({Notice::kExited, pid, status}, -1);
    }
  }

  void tell(const Notice& notice, int fd) {
    const std::string bytes(reinterpret_cast<const char*>(&notice), sizeof(notice));
    send_datagram(socket_.get(), bytes, fd < 0 ? std::vector<int>{} : std::vector<int>{fd});
  }

  // Control has closed the socket, or cannot be understood any more.
  [[noreturn]] void end() {
    for (const pid_t pid : children_) ::kill(pid, SIGKILL);
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    ::_exit(0);
  }

  const WorkerFunctions& functions_;
  OwnedFd socket_;
  OwnedFd child_signal_;
  std::set<pid_t> children_;
};

// A zygote that replaces another one is forked from a control that takes in signals.
void take_no_signals_of_control() {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction now {};
    if (::sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN) {
      std::signal(signal, SIG_DFL);
    }
  }
}

void raise_descriptor_limit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Zygote::Zygote(const WorkerFunctions& functions) {
  raise_descriptor_limit();
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    throw_shortage("no sockets could be made for the process that forks workers", errno);
  }
  socket_ = OwnedFd(ends[0]);
  OwnedFd child_end(ends[1]);
  const pid_t control = ::getpid();
  std::fflush(nullptr);  // else each worker prints it again
  pid_ = ::fork();
  if (pid_ < 0) throw_shortage("the process that forks workers could not be started", errno);
  if (pid_ > 0) return;
  die_with_parent(control);
  ::setpgid(0, 0);  // a terminal's Ctrl-C is for control alone
  take_no_signals_of_control();
  ::prctl(PR_SET_NAME, "sp-zygote");
  socket_.reset();
  close_all_but(child_end.get());
  try {
    ZygoteProcess(functions, std::move(child_end)).serve();
  } catch (const std::exception& error) {
    ::dprintf(STDERR_FILENO, "zygote: %s\n", error.what());
    ::_exit(70);
  }
}

Zygote::~Zygote() {
  socket_.reset();  // it kills and reaps its workers, then exits
  for (int waited_ms = 0; waited_ms < 3000 && !is_stopped(pid_); ++waited_ms) {
    if (::waitpid(pid_, nullptr, WNOHANG) != 0) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ::kill(pid_, SIGKILL);  // its workers follow
  ::waitpid(pid_, nullptr, 0);
}

Zygote::Spawned Zygote::spawn(const WorkerSetup& setup, WorkerFds fds) {
  nlohmann::json json = setup;
  std::vector<int> raw = {fds.channel.get(), fds.output.get()};
  for (const auto& [name, fd] : fds.optional()) {
    json[name] = fd->valid();
    if (fd->valid()) raw.push_back(fd->get());
  }
  if (!send_datagram(socket_.get(), json.dump(), raw)) gone_ = true;
  owes_answer_ = true;
  while (!gone_ && !spawned_) {
    pollfd notice{socket_.get(), POLLIN, 0};
    const int ready = ::poll(&notice, 1, static_cast<int>(kLookPeriod.count()));
    if (ready > 0) read();
    if (ready == 0) look();
  }
  if (!spawned_) throw InternalError("the process that forks workers " + how_gone_);
  Spawned spawned = std::move(*spawned_);
  spawned_.reset();
  if (spawned.pid < 0) throw_shortage("a worker could not be forked", spawned.error);
  if (!spawned.pidfd.valid() && spawned.error != ENOSYS) {  // its descriptor got lost on the way
    throw_shortage("no descriptor is left for another worker", EMFILE);
  }
  return spawned;
}

std::optional<WorkerExit> Zygote::next_exit() {
  while (exits_.empty() && read()) {
  }
  if (exits_.empty()) return std::nullopt;
  const WorkerExit exit = exits_.front();
  exits_.pop_front();
  return exit;
}

void Zygote::look() {
  while (read()) {
  }
  if (gone_) return;
  if (!owes_answer_) {
    owes_answer_ = send_datagram(socket_.get(), kAreYouThere, {});
    return;
  }
  silent_looks_ = runnable_threads(pid_) > 0 ? 0 : silent_looks_ + 1;
  if (silent_looks_ < kMostSilentLooksOfZygote) return;
  how_gone_ = is_stopped(pid_) ? "was stopped by a signal" : "gave no sign of life";
  ::kill(pid_, SIGKILL);
}

bool Zygote::read() {
  if (gone_) return false;
  Datagram datagram;
  const DatagramStatus status = receive_datagram(socket_.get(), true, datagram);
  if (status == DatagramStatus::kClosed) gone_ = true;
  if (status != DatagramStatus::kReceived) return false;
  owes_answer_ = false;
  silent_looks_ = 0;
  Notice notice;
  SHARDPROOF_ASSERT(datagram.bytes.size() == sizeof(notice), "a notice of the wrong size");
  std::memcpy(&notice, datagram.bytes.data(), sizeof(notice));
  if (notice.kind == Notice::kExited) {
    exits_.push_back({notice.pid, notice.status});
  } else if (notice.kind == Notice::kSpawned) {
    spawned_ = Spawned{notice.pid, datagram.fds.empty() ? OwnedFd() : std::move(datagram.fds[0]),
                       notice.status};
  }
  return true;
}

}  // namespace shardproof::sim::world
