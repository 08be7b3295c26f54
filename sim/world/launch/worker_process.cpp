#include "sim/world/launch/worker_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <csignal>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.h"
#include "base/owned_fd.h"
#include "base/shortage.h"
#include "sim/world/process/pidfd.h"
#include "sim/world/process/process_clock.h"

namespace shardproof::sim::world {

using boost::system::error_code;
using std::chrono::steady_clock;
using Descriptor = boost::asio::posix::stream_descriptor;

namespace {

// Ranks of another launcher send a heartbeat every 0.2 s. One that has sent none for this time is
// as silent as one that is stopped.
constexpr std::chrono::seconds kSilence{3};

std::string content_of(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return "";
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t got = ::pread(fd, bytes.data() + at, bytes.size() - at, static_cast<off_t>(at));
    SHARDPROOF_ASSERT(got > 0, "the golden cannot be read");
    at += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace

WorkerProcess::WorkerProcess(boost::asio::io_context& io, Zygote::Spawned spawned, OwnedFd channel,
                             OwnedFd output)
    : pid_(spawned.pid),
      pidfd_(std::move(spawned.pidfd)),
      channel_(io, channel.release()),
      out_(io, output.release()) {
  out_.non_blocking(true);
}

WorkerProcess::WorkerProcess(boost::asio::io_context& io, Remote remote, OwnedFd channel)
    : remote_(std::move(remote)),
      channel_(io, channel.release()),
      out_(io),
      reader_(remote_->seals.in) {}

WorkerProcess::~WorkerProcess() { kill(); }

void WorkerProcess::start(Listener listener) {
  listener_ = std::move(listener);
  wait_for_frames();
  if (!remote_) wait_for_output();
}

void WorkerProcess::kill() {
  if (ended_) return;
  if (remote_) {
    ::shutdown(channel_.native_handle(), SHUT_RDWR);  // it exits when its connection closes
  } else {
    ::pidfd_send_signal(pidfd_.get(), SIGKILL, nullptr, 0);
  }
}

double WorkerProcess::cpu_seconds() const { return remote_ ? remote_cpu_s_ : cpu_seconds_of(pid_); }

bool WorkerProcess::runnable() const {
  if (!remote_) return runnable_threads(pid_) > 0;
  return remote_runnable_ && !silent();
}

bool WorkerProcess::stopped() const { return !remote_ && is_stopped(pid_); }

bool WorkerProcess::silent() const {
  return remote_ && steady_clock::now() - remote_beat_ >= kSilence;
}

namespace {

// A rank on another host gets the golden in one frame.
void check_size_of_frame(int golden_fd, bool same_host) {
  struct stat status {};
  constexpr off_t kMost = (off_t{1} << 32) - 4096;
  if (same_host || ::fstat(golden_fd, &status) != 0 || status.st_size <= kMost) return;
  throw_bad_input(fmt::format("the golden has {:.1f} GiB, and ranks on other hosts get at most 4",
                              static_cast<double>(status.st_size) / (1 << 30)),
                  "run fewer steps or a smaller model, or do not record activations");
}

}  // namespace

std::string request_text(const nlohmann::json& request) {
  try {
    return request.dump();
  } catch (const nlohmann::json::type_error&) {
    throw_bad_input("the case has a text that is not UTF-8, such as the name of a file",
                    "rename the file or folder");
  }
}

void WorkerProcess::send_request(const std::string& request, int golden_fd) {
  std::vector<OwnedFd> fds;
  if (golden_fd >= 0 && !remote_) {
    fds.push_back(OwnedFd(::fcntl(golden_fd, F_DUPFD_CLOEXEC, 0)));
    if (!fds[0].valid()) throw_shortage("no descriptor is left for the golden", errno);
  }
  if (golden_fd >= 0 && remote_) {
    check_size_of_frame(golden_fd, remote_->same_host);
    const std::string path =
        "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(golden_fd);
    send(FrameType::kGolden,
         remote_->same_host ? "path " + path : "bytes " + content_of(golden_fd));
  }
  send(FrameType::kRequest, request, std::move(fds));
}

void WorkerProcess::send(FrameType type, const std::string& payload, std::vector<OwnedFd> fds) {
  const auto number = static_cast<uint16_t>(type);
  outgoing_.emplace_back(type, remote_ ? remote_->seals.out.close(number, payload) : payload,
                         std::move(fds));
  if (!writing_) wait_to_write();
}

void WorkerProcess::wait_to_write() {
  writing_ = true;
  while (!outgoing_.empty()) {
    const FrameWriter::Status status = outgoing_.front().write_some(channel_.native_handle(), true);
    if (status == FrameWriter::Status::kAgain) {
      channel_.async_wait(Descriptor::wait_write,
                          [self = weak_from_this()](const error_code& error) {
                            const auto worker = self.lock();
                            if (worker && !error) worker->wait_to_write();
                          });
      return;
    }
    if (status == FrameWriter::Status::kBroken) outgoing_.clear();  // its exit is on its way
    if (!outgoing_.empty()) outgoing_.pop_front();
  }
  writing_ = false;
}

void WorkerProcess::ask_ops() { send(FrameType::kAskOps, ""); }

void WorkerProcess::take(Frame frame) {
  if (frame.type == FrameType::kOps) {
    std::from_chars(frame.payload.data(), frame.payload.data() + frame.payload.size(), ops_);
    return;
  }
  if (frame.type == FrameType::kHeartbeat) {
    const nlohmann::json beat = nlohmann::json::parse(frame.payload, nullptr, false);
    if (!beat.is_object()) return;
    remote_cpu_s_ = beat.value("cpu_s", remote_cpu_s_);
    remote_runnable_ = beat.value("runnable", true);
    remote_beat_ = steady_clock::now();
    return;
  }
  const auto on_frame = listener_.on_frame;
  if (on_frame) on_frame(std::move(frame));
}

WorkerProcess::Read WorkerProcess::read_frames() {
  const auto keep = shared_from_this();  // the listener may let go of this worker
  const FrameReader::Status status = reader_.read_some(channel_.native_handle(), true);
  const bool more = reader_.had_data();
  while (std::optional<Frame> frame = reader_.next()) take(std::move(*frame));
  if (status == FrameReader::Status::kClosed) return Read::kClosed;
  return more ? Read::kSome : Read::kNothing;
}

void WorkerProcess::wait_for_frames() {
  channel_.async_wait(Descriptor::wait_read, [self = weak_from_this()](const error_code& error) {
    const auto worker = self.lock();
    if (!worker || error) return;
    if (worker->read_frames() != Read::kClosed) return worker->wait_for_frames();
    const std::string how = worker->reader_.forged()
                                ? "lost its connection: a frame came that the secret does not open"
                                : "closed its connection";
    if (worker->remote_) worker->exited(how + " (" + worker->remote_->name + ")");
    // Else the zygote's notice follows.
  });
}

void WorkerProcess::drain() {
  const auto keep = shared_from_this();
  while (read_frames() == Read::kSome) {
  }
}

WorkerProcess::Read WorkerProcess::read_output() {
  char chunk[16 * 1024];
  const ssize_t got = ::read(out_.native_handle(), chunk, sizeof(chunk));
  if (got < 0) return errno == EAGAIN || errno == EINTR ? Read::kNothing : Read::kClosed;
  output_.append(chunk, static_cast<size_t>(got));
  if (output_.size() > 2 * kOutputBytes) output_.erase(0, output_.size() - kOutputBytes);
  return got > 0 ? Read::kSome : Read::kClosed;
}

void WorkerProcess::wait_for_output() {
  out_.async_wait(Descriptor::wait_read, [self = weak_from_this()](const error_code& error) {
    const auto worker = self.lock();
    const bool listen = worker && !error && worker->read_output() != Read::kClosed;
    if (listen) worker->wait_for_output();
  });
}

void WorkerProcess::exited(const std::string& how) {
  const auto keep = shared_from_this();
  if (std::exchange(ended_, true)) return;
  drain();
  while (!remote_ && read_output() == Read::kSome) {
  }
  const auto on_exit = listener_.on_exit;
  if (on_exit) on_exit(how);
}

}  // namespace shardproof::sim::world
