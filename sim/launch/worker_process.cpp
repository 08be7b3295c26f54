#include "sim/launch/worker_process.h"

#include <fcntl.h>
extern "C" {  // glibc 2.36 forgets it
#include <sys/pidfd.h>
}

#include <cerrno>
#include <csignal>
#include <utility>

namespace shardproof::sim {

using boost::system::error_code;
using Descriptor = boost::asio::posix::stream_descriptor;

WorkerProcess::WorkerProcess(boost::asio::io_context& io, Zygote::Spawned spawned, OwnedFd channel,
                             OwnedFd output)
    : pid_(spawned.pid),
      pidfd_(std::move(spawned.pidfd)),
      channel_(io, channel.release()),
      out_(io, output.release()) {
  out_.non_blocking(true);
}

WorkerProcess::~WorkerProcess() { kill(); }

void WorkerProcess::start(Listener listener) {
  listener_ = std::move(listener);
  wait_for_frames();
  wait_for_output();
}

void WorkerProcess::mute() { listener_ = {}; }

void WorkerProcess::kill() {
  if (!ended_) ::pidfd_send_signal(pidfd_.get(), SIGKILL, nullptr, 0);
}

void WorkerProcess::send(FrameType type, const std::string& payload, std::vector<OwnedFd> fds) {
  outgoing_.emplace_back(type, payload, std::move(fds));
  if (!writing_) wait_to_write();
}

void WorkerProcess::wait_to_write() {
  writing_ = true;
  while (!outgoing_.empty()) {
    const FrameWriter::Status status = outgoing_.front().write_some(channel_.native_handle(), true);
    if (status == FrameWriter::Status::kAgain) {
      channel_.async_wait(Descriptor::wait_write, [self = weak_from_this()](const error_code& error) {
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

WorkerProcess::Read WorkerProcess::read_frames() {
  const auto keep = shared_from_this();  // the listener may let go of this worker
  const FrameReader::Status status = reader_.read_some(channel_.native_handle(), true);
  const bool more = reader_.had_data();
  while (std::optional<Frame> frame = reader_.next()) {
    const auto on_frame = listener_.on_frame;
    if (on_frame) on_frame(std::move(*frame));
  }
  if (status == FrameReader::Status::kClosed) return Read::kClosed;
  return more ? Read::kSome : Read::kNothing;
}

void WorkerProcess::wait_for_frames() {
  channel_.async_wait(Descriptor::wait_read, [self = weak_from_this()](const error_code& error) {
    const auto worker = self.lock();
    const bool listen = worker && !error && worker->read_frames() != Read::kClosed;
    if (listen) worker->wait_for_frames();  // closed: the exit notice follows
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
  while (read_output() == Read::kSome) {
  }
  const auto on_exit = listener_.on_exit;
  if (on_exit) on_exit(how);
}

}  // namespace shardproof::sim
