// One rank's part of a case from start to ending: planted faults, the watchdog's hooks, and the
// kind of an exception.
#pragma once

#include <functional>
#include <string>

#include "sim/case/case_spec.h"
#include "sim/case/rank_ending.h"
#include "sim/world/process/worker_functions.h"
#include "sim/world/rank/rank_main.h"

namespace shardproof::sim::world {

using RankMain = std::function<std::string(const CaseSpec& spec, const RankEnv& env)>;

// Sets `env.on_call`, `env.on_wait` and `env.on_step`. Never throws.
RankEnding run_rank(const RankMain& main, const CaseSpec& spec, RankEnv env,
                    const RankHooks& hooks);

// Prepares a rank's thread for rank_main: operators and backwards are single-threaded.
void prepare_rank_thread();

}  // namespace shardproof::sim::world
