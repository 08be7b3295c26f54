// The process that forks all workers: LibTorch is loaded in it, it is single-threaded and runs no
// tensor op, so its children may do anything.
//
// Everything dies with its parent: control -> zygote -> workers (PR_SET_PDEATHSIG). The zygote
// reaps its workers and tells control at once how each ended. One that gives no sign of life is
// ended, so that nothing waits for it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <deque>
#include <optional>
#include <string>

#include "sim/world/process/worker_main.h"

namespace shardproof::sim::world {

struct WorkerExit {
  pid_t pid = 0;
  int status = 0;  // as waitpid gives it
};

class Zygote {
 public:
  // Forks. Only from the thread that outlives everything (its end is a parent's death for the
  // zygote), before any other thread and any tensor op.
  explicit Zygote(const WorkerFunctions& functions);
  ~Zygote();  // all workers are killed and reaped when it returns
  Zygote(const Zygote&) = delete;
  Zygote& operator=(const Zygote&) = delete;

  struct Spawned {
    pid_t pid = 0;
    OwnedFd pidfd;
    int error = 0;  // why there is no process, or no pidfd
  };
  // Throws InternalError when the zygote has gone, and Error(kBadInput) when it cannot fork.
  Spawned spawn(const WorkerSetup& setup, WorkerFds fds);

  // Asks for a sign of life, or looks whether the last one came. Call it every kLookPeriod. One
  // that owes an answer at many looks in a row, and is neither ready to run nor waiting for the
  // disk at any of them (a machine that is only slow), is stopped or hung: it is killed.
  static constexpr std::chrono::milliseconds kLookPeriod{250};
  void look();

  int socket() const { return socket_.get(); }  // readable: call next_exit() until nullopt
  std::optional<WorkerExit> next_exit();
  bool has_exits() const { return !exits_.empty(); }  // spawn() may have read some
  bool gone() const { return gone_; }
  const std::string& how_gone() const { return how_gone_; }
  pid_t pid() const { return pid_; }

 private:
  bool read();  // one notice, without waiting; false: there is none

  OwnedFd socket_;
  pid_t pid_ = 0;
  bool gone_ = false;
  std::string how_gone_ = "has gone";
  bool owes_answer_ = false;
  int silent_looks_ = 0;
  std::deque<WorkerExit> exits_;
  std::optional<Spawned> spawned_;
};

}  // namespace shardproof::sim::world
