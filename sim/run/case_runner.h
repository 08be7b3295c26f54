// Runs cases: golden (reused from an earlier case with the same key), world, verdict. Several cases
// may run at a time; everything here happens on the calling thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sim/judge/verdict/verdict.h"
#include "sim/run/golden_store.h"
#include "sim/run/limits.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim::run {

class CaseRunner {
 public:
  using Done = std::function<void(judge::CaseResult)>;

  // With `fresh`, every case gets a new world. One that needs more than `limits` is bad input;
  // without limits it starts.
  CaseRunner(world::WorldPool& pool, GoldenStore& goldens, bool fresh,
             std::optional<MachineLimits> limits)
      : pool_(pool), goldens_(goldens), fresh_(fresh), limits_(limits) {}

  // Calls `done` once, now or later in wait_until. Errors of the case are results, not exceptions.
  void start(const CaseSpec& spec, Done done);
  // Starts the golden of a case that is to start later, unless it is large, or the case
  // would not start.
  void prepare(const CaseSpec& spec);
  // Whether the case would wait for a golden that is being computed.
  bool waits_for_golden(const CaseSpec& spec);
  // Serves the running cases until at most `count` are left.
  void wait_until_at_most(int64_t count);
  // Serves until a case of `ranks` ranks may start. At most `cores` cases then run (two of one
  // core), with at most 8 ranks per core in all; a larger case runs alone.
  void wait_for_room(int64_t ranks, int64_t cores);
  judge::CaseResult run(const CaseSpec& spec);

 private:
  struct RunningCase;
  // Throws an Error where the case cannot start.
  void check(const CaseSpec& spec) const;
  void get_golden(const std::shared_ptr<RunningCase>& running);
  void start_world(const std::shared_ptr<RunningCase>& running, const GoldenStore::Golden& golden);
  // Gets the goldens of single microbatches, from number `next` on, then judges again.
  void get_microbatches(const std::shared_ptr<RunningCase>& running,
                        const std::vector<RankEnding>& endings, size_t next);
  void finish(const std::shared_ptr<RunningCase>& running, const std::vector<RankEnding>& endings);

  world::WorldPool& pool_;
  GoldenStore& goldens_;
  bool fresh_;
  std::optional<MachineLimits> limits_;
  int64_t under_way_ = 0;
  int64_t ranks_under_way_ = 0;
};

}  // namespace shardproof::sim::run
