// One rank's part of a case from start to ending: planted faults, the watchdog's hooks, and the
// kind of an exception.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/rank_ending.h"
#include "sim/world/match/call_line.h"
#include "sim/world/process/worker_functions.h"
#include "sim/world/rank/rank_main.h"

namespace shardproof::sim::world {

using RankMain = std::function<std::string(const std::string& request, const RankEnv& env)>;

// Called on the rank's thread.
struct RankHooks {
  std::function<void(int64_t rank)> on_start = {};
  // Called before each call and, with line.waiting, before a wait for an asynchronous one.
  std::function<void(int64_t rank, const CallLine& line)> on_call = {};
  std::function<void(int64_t rank)> before_kill =
      {};  // a planted fault is about to kill the process
  std::function<void(int64_t rank, const FaultNote& note)> on_fault = {};  // a planted fault acts
  std::function<void(int64_t rank, int64_t step)> on_step = {};  // a training step begins, from 1
  ChangeLink change_link = {};                                   // as WorldSetup's
};

// `spec` is the request's case. Sets `env.on_call`, `env.on_wait` and `env.on_step`. Never throws.
RankEnding run_rank(const RankMain& main, const std::string& request, RankEnv env,
                    const CaseSpec& spec, const RankHooks& hooks);

// Prepares a rank's thread for rank_main: operators and backwards are single-threaded.
void prepare_rank_thread();

// The case of a request; the default if it cannot be read (rank_main reports that).
CaseSpec case_of(const std::string& request);

}  // namespace shardproof::sim::world
