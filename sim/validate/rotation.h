// A rank that runs on another rank's process: rank r of a rotation by `shift` runs on process
// (r + shift) mod N.
#pragma once

#include "sim/world/rank/rank_main.h"

namespace shardproof::sim {

int64_t process_of(int64_t rank, int64_t shift, int64_t world_size);
int64_t rank_at(int64_t process, int64_t shift, int64_t world_size);

// The environment of the rank that runs on the process of `env`. Groups and the calls that `env`
// hears of have the numbers of the processes.
RankEnv rotated(const RankEnv& env, int64_t shift);

}  // namespace shardproof::sim
