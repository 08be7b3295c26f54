// Worlds with a process for each rank. Control matches their calls.
#pragma once

#include "sim/world/launch/world.h"
#include "sim/world/match/matcher.h"
#include "sim/world/process/call_lines.h"
#include "sim/world/process/control_store.h"

namespace shardproof::sim::world {

class ProcessWorld : public World {
 public:
  using World::World;

 protected:
  void begin(const CaseSpec& spec) override;
  void on_line(const CallLine& line);
  bool looks_stuck() override;
  void worker_died(size_t worker, const std::string& how) override;
  void add_facts(std::vector<RankEnding>& endings) override;

 private:
  std::optional<Finding> finished(int64_t rank) override { return matcher_->ended(rank); }
  void hung(const std::string& why) override;
  virtual bool hung_by_links(const std::string&) { return false; }  // false: no link explains it
  std::string last_call(int64_t rank) const override;
  std::string consequence(int64_t rank, const std::string& why) override {
    return matcher_->consequence(rank, why);
  }

  std::optional<Matcher> matcher_;
  int64_t mesh_ranks_ = 0;  // those behind them only take weights
};

// Ranks that were forked here, perhaps on nodes with links between them.
class ForkedWorld final : public ProcessWorld {
 public:
  using ProcessWorld::ProcessWorld;
  void start(Workers& workers);

 private:
  void begin(const CaseSpec& spec) override;
  void take_lines() override;
  void take_lines_again();
  bool looks_stuck() override;
  bool hung_by_links(const std::string& why) override;
  void add_facts(std::vector<RankEnding>& endings) override;

  CallLines lines_{key_.world_size};
  std::optional<NodeNetwork> network_;
};

// Ranks that another launcher started, each behind a connection.
class LauncherWorld final : public ProcessWorld {
 public:
  using ProcessWorld::ProcessWorld;
  void take_in(std::vector<std::shared_ptr<WorkerProcess>> ranks);  // by rank
  void end_ranks();          // tells them to end and to start again for another world
  void dismiss(int status);  // tells them to exit with this status
  bool all_gone() const;

 private:
  bool hung_by_links(const std::string& why) override;
  void on_frame(size_t worker, Frame frame) override;
  void end_workers() override {}  // they are dismissed, with a status
  void tell(FrameType type, const std::string& text);

  ControlStore store_;  // at which the ranks meet
};

}  // namespace shardproof::sim::world
