// One worker as control sees it: its channel, its output, its end. The destructor kills the
// process, and the zygote reaps it. A worker may also be a rank that another launcher started,
// perhaps on another host, behind a TCP connection: the destructor sends it a request to exit, and
// its launcher reaps it.
#pragma once

#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "sim/world/launch/zygote.h"
#include "sim/world/process/wire.h"

namespace shardproof::sim::world {

// A request as text. Throws Error(kBadInput) if a text of it, such as a file's name, is not UTF-8.
std::string request_text(const nlohmann::json& request);

class WorkerProcess : public std::enable_shared_from_this<WorkerProcess> {
 public:
  struct Listener {
    std::function<void(Frame)> on_frame;
    // Once, after everything that it sent and printed has been taken in.
    std::function<void(const std::string& how)> on_exit;
  };

  struct Remote {
    std::string name;  // "pid 17 on host a", for messages
    std::string host = {};
    bool same_host = false;  // it can open this process's descriptors by path
    Seals seals;             // of the frames on its connection
  };
  WorkerProcess(boost::asio::io_context& io, Zygote::Spawned spawned, OwnedFd channel,
                OwnedFd output);
  WorkerProcess(boost::asio::io_context& io, Remote remote, OwnedFd channel);
  ~WorkerProcess();
  void start(Listener listener);  // from here on the listener is called, on the io_context

  void send(FrameType type, const std::string& payload, std::vector<OwnedFd> fds = {});
  void send_request(const std::string& request, int golden_fd);  // borrowed; -1: none
  void kill();
  void drain();  // hands over every frame that has arrived
  void exited(const std::string& how);

  pid_t pid() const { return pid_; }
  bool ended() const { return ended_; }
  double cpu_seconds() const;  // used so far, all threads
  void ask_ops();              // how many ops it has begun: ops() is the last answer
  uint64_t ops() const { return ops_; }
  bool runnable() const;  // some thread waits for nothing but the processor or the disk
  bool stopped() const;   // by a signal or a debugger; false where that cannot be known
  bool silent() const;    // a rank of another launcher sends no signs of life
  const std::string& host() const { return remote_->host; }  // of such a rank
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

  void take(Frame frame);

  pid_t pid_ = 0;
  OwnedFd pidfd_;
  std::optional<Remote> remote_;
  double remote_cpu_s_ = 0;
  bool remote_runnable_ = true;
  std::chrono::steady_clock::time_point remote_beat_ = std::chrono::steady_clock::now();
  boost::asio::posix::stream_descriptor channel_;
  boost::asio::posix::stream_descriptor out_;
  Listener listener_;
  FrameReader reader_;
  std::deque<FrameWriter> outgoing_;
  bool writing_ = false;
  bool ended_ = false;
  uint64_t ops_ = 0;
  std::string output_;
};

}  // namespace shardproof::sim::world
