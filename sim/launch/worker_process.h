// One worker as control sees it: its channel, what it printed, its end. Owning it means that it is
// killed, however the scope is left; the zygote reaps it.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "sim/launch/wire.h"
#include "sim/launch/zygote.h"

namespace shardproof::sim {

class WorkerProcess : public std::enable_shared_from_this<WorkerProcess> {
 public:
  struct Listener {
    std::function<void(Frame)> on_frame;
    // Once, after everything that it sent and printed has been taken in.
    std::function<void(const std::string& how)> on_exit;
  };

  WorkerProcess(boost::asio::io_context& io, Zygote::Spawned spawned, OwnedFd channel, OwnedFd output);
  ~WorkerProcess();
  void start(Listener listener);  // from here on the listener is called, on the io_context

  void send(FrameType type, const std::string& payload, std::vector<OwnedFd> fds = {});
  void kill();
  void drain();   // hands over every frame that has arrived
  void exited(const std::string& how);
  void mute();    // the listener is not called any more

  pid_t pid() const { return pid_; }
  bool ended() const { return ended_; }
  // The end of what it has printed since `forget_output`, at most kOutputBytes.
  const std::string& output() const { return output_; }
  void forget_output() { output_.clear(); }
  static constexpr size_t kOutputBytes = 256 * 1024;

 private:
  void wait_for_frames();
  void wait_for_output();
  void wait_to_write();
  enum class Read { kSome, kNothing, kClosed };
  Read read_output();
  Read read_frames();

  pid_t pid_;
  OwnedFd pidfd_;
  boost::asio::posix::stream_descriptor channel_;
  boost::asio::posix::stream_descriptor out_;
  Listener listener_;
  FrameReader reader_;
  std::deque<FrameWriter> outgoing_;
  bool writing_ = false;
  bool ended_ = false;
  std::string output_;
};

}  // namespace shardproof::sim
