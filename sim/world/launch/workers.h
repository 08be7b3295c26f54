// The zygote and every worker that control has: starts them, watches the zygote, and tells each
// worker of its end.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <memory>

#include "sim/world/launch/worker_process.h"

namespace shardproof::sim::world {

class Workers {
 public:
  Workers(boost::asio::io_context& io, const WorkerFunctions& functions);
  ~Workers();  // all workers have ended and are reaped

  // Memory and namespaces that a worker shares: descriptors, -1 for what it has not; they are
  // duplicated.
  struct Shared {
    int board = -1, store = -1, lines = -1;
    NodePlace node = {};
  };
  // Call start() on the result.
  std::shared_ptr<WorkerProcess> start(const WorkerSetup& setup, const Shared& shared);
  // False when the zygote has gone, and all workers with it: this object is of no more use.
  bool usable() const { return !zygote_.gone(); }

 private:
  void wait_for_exits();
  void take_exits();
  void watch_zygote();
  void end_all_if_gone();  // the workers, when the zygote has

  boost::asio::io_context& io_;
  Zygote zygote_;
  boost::asio::posix::stream_descriptor notices_;
  boost::asio::steady_timer next_look_;
  std::map<pid_t, std::weak_ptr<WorkerProcess>> alive_;
  const std::shared_ptr<bool> living_ = std::make_shared<bool>();  // for what is posted
};

}  // namespace shardproof::sim::world
