// A world of ranks as control sees it: its workers, and one case at a time on them.
//
//   ThreadWorld     emulated: one worker holds all ranks as threads; it names deadlocks and
//                   disagreements itself
//   ForkedWorld     gloo, nccl: one worker per rank; control matches their calls (sim/world/match)
//   LauncherWorld   the same with ranks that another launcher started
//
// The first rank that fails ends the case: the others are ended too (they would wait for it for
// ever), as `aborted`, so that the ending of another kind is the root cause.
#pragma once

#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/world/launch/deadline.h"
#include "sim/world/launch/workers.h"
#include "sim/world/launch/world_run.h"
#include "sim/world/match/agreement.h"
#include "sim/world/nodes/node_network.h"
#include "sim/world/process/call_board.h"

namespace shardproof::sim::world {

struct WorldKey {
  Backend backend = Backend::kEmulated;
  DeviceKind device = DeviceKind::kCpu;
  int64_t world_size = 1;
  // Over Gloo: the ranks of each node, which is a network namespace (0: no nodes).
  int64_t ranks_per_node = 0;
  NodeLinks links = {};
  auto operator<=>(const WorldKey&) const = default;
};

class World : public std::enable_shared_from_this<World> {
 public:
  // Starts its workers. Throws InternalError when they cannot be started, Error(kBadInput) when
  // its nodes cannot be made here.
  static std::shared_ptr<World> start(boost::asio::io_context& io, Workers& workers, WorldKey key);
  World(boost::asio::io_context& io, WorldKey key)
      : io_(io), key_(std::move(key)), board_(key_.world_size) {}
  virtual ~World() = default;

  // `done` is called once, from the io_context. golden_fd is borrowed, -1 for none.
  void run(const CaseSpec& spec, int golden_fd, std::function<void(WorldRun)> done);
  void kill();  // the case under way ends as it stands, all else aborted
  const WorldKey& key() const { return key_; }
  bool broken() const { return broken_; }  // a worker has ended: of no more use

 protected:
  void add_worker(std::shared_ptr<WorkerProcess> worker);

  // What each kind of world does its own way.
  virtual void begin(const CaseSpec&) {}  // a case
  virtual void take_lines() {}            // that ranks have put into shared memory so far
  virtual void on_frame(size_t worker, Frame frame);
  virtual void worker_died(size_t worker, const std::string& how) = 0;
  virtual std::optional<Finding> finished(int64_t) { return std::nullopt; }  // a rank
  virtual bool looks_stuck() { return false; }      // for a reason that needs no time limit
  virtual void hung(const std::string& limit) = 0;  // which was exceeded
  virtual std::string last_call(int64_t rank) const { return board_.last_label(rank); }
  // Of a rank that is ended `why`, because another one failed.
  virtual std::string consequence(int64_t, const std::string& why) { return why; }
  // What control knows besides of ranks that failed: what they printed.
  virtual void add_facts(std::vector<RankEnding>& endings) = 0;
  virtual void end_workers();

  void note(RankEnding ending);
  void found(const Finding& finding);
  void set_ending(int64_t rank, ResultKind kind, const std::string& message);
  bool has_ended(int64_t rank) const { return endings_[static_cast<size_t>(rank)].has_value(); }
  bool all_ended() const;
  static bool ended_well(const RankEnding& ending) {
    return ending.kind == ResultKind::kFinished || is_refusal(ending);
  }
  // The last lines that the worker printed, at most so many.
  std::string printed_by(size_t worker, int lines) const;
  // After a failure, how long to wait for what other ranks say: a root cause may be named after it.
  static constexpr std::chrono::milliseconds kGraceAfterRoot{20};
  static constexpr int kLinesOfOutput = 5, kLinesPrinted = 100;  // in a message; in the log
  void settle_after(std::chrono::milliseconds grace);
  void settle();  // ends every rank that still runs
  void finish();
  // While the case under way lasts.
  void after(std::chrono::milliseconds delay, std::function<void()> action);

  boost::asio::io_context& io_;
  const WorldKey key_;
  CallBoard board_;
  std::vector<std::shared_ptr<WorkerProcess>> workers_;
  bool broken_ = false;

  // Of the case under way.
  bool running_ = false;
  std::vector<std::optional<RankEnding>> endings_;

 private:
  void on_exit(size_t worker, const std::string& how);
  void tick();
  bool looks_hung(const HangSample& sample);
  std::vector<double> cpu_seconds() const;  // used so far, per process
  std::string root_cause() const;
  void add_faults(RankEnding& ending) const;

  uint64_t case_number_ = 0;  // timers of an earlier case do nothing
  std::function<void(WorldRun)> done_;
  std::vector<std::pair<int64_t, FaultNote>> faults_;  // that have acted, by rank
  double hang_s_ = 2, deadline_s_ = 120;
  HangRule hang_rule_{2};
  Deadline deadline_{120, 1};
  bool settling_ = false;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace shardproof::sim::world
