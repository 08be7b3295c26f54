// Cases through their stages: golden (taken from an earlier case where it is the same), world,
// verdict. Several may be under way; everything happens on the calling thread.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "sim/judge/verdict/verdict.h"
#include "sim/run/golden_store.h"
#include "sim/world/launch/world_pool.h"

namespace shardproof::sim {

class CaseRunner {
 public:
  using Done = std::function<void(CaseResult)>;

  // `fresh`: a new world for every case.
  CaseRunner(WorldPool& pool, GoldenStore& goldens, bool fresh)
      : pool_(pool), goldens_(goldens), fresh_(fresh) {}

  // `done` is called once: now, or later from wait_until. Nothing that the case did is thrown.
  void start(const CaseSpec& spec, Done done);
  // Serves what is under way until at most `count` cases are.
  void wait_until_at_most(int64_t count);
  // Serves until a case of `ranks` ranks may start: one case more than `cores` may then be under
  // way, with 8 ranks a core in all; a larger case runs alone.
  void wait_for_room(int64_t ranks, int64_t cores);
  // One case from start to end.
  CaseResult run(const CaseSpec& spec);

 private:
  struct Under;  // a case under way
  void start_world(const std::shared_ptr<Under>& under, const GoldenStore::Golden& golden);
  void finish(const std::shared_ptr<Under>& under, const std::vector<RankEnding>& endings);

  WorldPool& pool_;
  GoldenStore& goldens_;
  bool fresh_;
  int64_t under_way_ = 0;
  int64_t ranks_under_way_ = 0;
};

}  // namespace shardproof::sim
