// One rank's part of a case from start to ending: planted faults, the watchdog's hooks, and
// whatever it throws as a kind.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "sim/case/case_spec.h"
#include "sim/case/rank_ending.h"
#include "sim/world/match/call_line.h"
#include "sim/world/rank/rank_main.h"

namespace shardproof::sim {

using RankMain = std::function<std::string(const std::string& request, const RankEnv& env)>;

// Called on the rank's own thread.
struct RankHooks {
  std::function<void(int64_t rank)> on_start = {};
  // Before each call, and (line.waiting) before waiting for an asynchronous one.
  std::function<void(int64_t rank, const CallLine& line)> on_call = {};
  std::function<void(int64_t rank)> before_kill =
      {};  // a planted fault is about to kill the process
  std::function<void(int64_t rank, const FaultNote& note)> on_fault = {};  // a planted fault acts
  std::function<void(int64_t rank, int64_t step)> on_step = {};  // a training step begins, from 1
};

// `env.on_call`, `env.on_wait` and `env.on_step` are set here. Never throws.
RankEnding run_rank(const RankMain& main, const std::string& request, RankEnv env,
                    const std::vector<FaultSpec>& faults, const RankHooks& hooks);

// The exception under way as kind and message. `message` has no backtrace.
void describe_exception(RankEnding& ending);

// What a rank's thread must be before rank_main: single-threaded operators and backward.
void prepare_rank_thread();

// How the request wants its emulated world; the defaults when it cannot be read.
WorldSpec world_of(const std::string& request);

// The faults of a request; none when it cannot be read (rank_main says so).
std::vector<FaultSpec> faults_of(const std::string& request);

// Whether the calls of a request are hashed; not when it cannot be read.
bool wants_digests(const std::string& request);

}  // namespace shardproof::sim
