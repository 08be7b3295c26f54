// A world whose ranks are threads of one worker.
#pragma once

#include "sim/world/launch/world.h"

namespace shardproof::sim::world {

class ThreadWorld final : public World {
 public:
  using World::World;
  void start(Workers& workers);

 private:
  void begin(const CaseSpec&) override { abort_sent_ = false; }
  void worker_died(size_t worker, const std::string& how) override;
  void hung(const std::string& limit) override;
  void add_facts(std::vector<RankEnding>& endings) override;

  bool abort_sent_ = false;
};

}  // namespace shardproof::sim::world
