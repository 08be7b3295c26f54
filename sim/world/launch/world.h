// A world of ranks as control sees it: its workers, and one case at a time on them.
//
//   emulated     one worker holds all ranks as threads; it names deadlocks and disagreements itself
//   gloo, nccl   one worker per rank; control matches their calls (sim/world/match)
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
#include "sim/world/match/matcher.h"
#include "sim/world/nodes/node_network.h"
#include "sim/world/process/call_board.h"
#include "sim/world/process/call_lines.h"
#include "sim/world/process/control_store.h"

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
  // A world of ranks that are there already, one process each, by rank.
  static std::shared_ptr<World> of(boost::asio::io_context& io, WorldKey key,
                                   std::vector<std::shared_ptr<WorkerProcess>> ranks);

  // `done` is called once, from the io_context. golden_fd is borrowed, -1 for none.
  void run(const CaseSpec& spec, int golden_fd, std::function<void(WorldRun)> done);
  // Tells remote ranks to end and to start again for another world.
  void end_ranks();
  // Tells remote ranks to exit with this status; the world is broken afterwards.
  void dismiss(int status);
  bool all_gone() const;  // no worker is left
  void kill();            // the case under way ends as it stands, all else aborted
  const WorldKey& key() const { return key_; }
  bool broken() const { return broken_; }  // a worker has ended: of no more use

 private:
  World(boost::asio::io_context& io, WorldKey key);
  void start_workers(Workers& workers);
  void listen_to(size_t worker);
  bool in_processes() const { return key_.backend != Backend::kEmulated; }

  void on_frame(size_t worker, Frame frame);
  void on_exit(size_t worker, const std::string& how);
  void on_call(size_t worker, const std::string& text);
  void take_lines();  // that ranks have put into the shared memory so far
  void take_lines_again();
  void add_faults(RankEnding& ending) const;
  void add_printed(std::vector<RankEnding>& endings) const;
  void note(RankEnding ending);
  void found(const Finding& finding);
  void rank_died(int64_t rank, size_t worker, const std::string& how);
  void emulated_world_died(const std::string& how);

  void tick();
  bool refuser_is_awaited() const;
  bool looks_hung(const HangSample& sample);
  std::vector<double> cpu_seconds() const;  // used so far, per process
  void hung(const std::string& limit);      // which was exceeded
  void hung_processes(const std::string& why);
  bool hung_by_links(const std::string& why);  // false: no link explains it
  void add_trouble_of_links();
  // After a failure, how long to wait for what other ranks say: a root cause may be named after it.
  static constexpr std::chrono::milliseconds kGraceAfterRoot{20};
  void settle_after(std::chrono::milliseconds grace);
  void settle();  // ends every rank that still runs
  void set_ending(int64_t rank, ResultKind kind, const std::string& message);
  std::string last_call(int64_t rank) const;
  bool all_ended() const;
  std::string root_cause() const;
  void finish();
  template <class Action>
  void after(std::chrono::milliseconds delay, Action action);

  boost::asio::io_context& io_;
  WorldKey key_;
  CallBoard board_;
  std::optional<CallLines> lines_;  // of processes that were forked here
  std::optional<NodeNetwork> network_;
  std::vector<std::shared_ptr<WorkerProcess>> workers_;
  ControlStore store_;  // at which ranks of another launcher meet
  bool broken_ = false;

  // Of the case under way.
  uint64_t case_number_ = 0;  // timers of an earlier case do nothing
  bool running_ = false;
  std::function<void(WorldRun)> done_;
  std::vector<std::optional<RankEnding>> endings_;
  std::vector<std::pair<int64_t, FaultNote>> faults_;  // that have acted, by rank
  double hang_s_ = 2, deadline_s_ = 120;
  int64_t mesh_ranks_ = 0;  // those behind them only take weights
  HangRule hang_rule_{2};
  Deadline deadline_{120, 1};
  std::optional<Matcher> matcher_;  // of process worlds
  bool settling_ = false;
  bool abort_sent_ = false;
  std::chrono::steady_clock::time_point started_;
};

}  // namespace shardproof::sim::world
