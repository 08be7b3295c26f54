// A worker that computes goldens, one at a time, and stays warm between them.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "sim/world/launch/deadline.h"
#include "sim/world/launch/workers.h"
#include "sim/world/process/worker_main.h"

namespace shardproof::sim::world {

struct GoldenTask {
  const CaseSpec& spec;
  golden::Members members = {};
  int golden_fd = -1;     // where the blob goes; borrowed until the task is done
  std::string dump_path;  // "" none
};

class GoldenWorker : public std::enable_shared_from_this<GoldenWorker> {
 public:
  static std::shared_ptr<GoldenWorker> start(boost::asio::io_context& io, Workers& workers);

  // `done` is called once, from the event loop.
  void run(const GoldenTask& task, std::function<void(TaskOutcome)> done);
  void kill();                             // a task under way ends as interrupted
  bool broken() const { return broken_; }  // of no more use

 private:
  explicit GoldenWorker(boost::asio::io_context& io) : io_(io), timer_(io) {}
  struct Watch {
    HangRule idle;
    Deadline deadline;
    double hang_s, deadline_s;
    std::chrono::steady_clock::time_point start;
  };
  void watch(Watch task);
  bool looks_idle(HangRule& rule, double now_s) const;
  void finish(TaskOutcome outcome);
  void end(TaskOutcome outcome);

  boost::asio::io_context& io_;
  boost::asio::steady_timer timer_;
  std::shared_ptr<WorkerProcess> worker_;
  std::function<void(TaskOutcome)> done_;
  bool broken_ = false;
};

}  // namespace shardproof::sim::world
