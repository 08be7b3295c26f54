// A rank that runs on another rank's process: rank r of a rotation by `shift` runs on process
// (r + shift) mod N. Of a part of the processes, N is their number and they count in their order.
#pragma once

#include <vector>

#include "sim/world/rank/rank_main.h"

namespace shardproof::sim::validate {

int64_t process_of(int64_t rank, int64_t shift, int64_t world_size);
int64_t rank_at(int64_t process, int64_t shift, int64_t world_size);
// The process of each rank.
std::vector<int64_t> rotation_of(const std::vector<int64_t>& processes, int64_t shift);

// The environment of the rank that runs on the process of `env`, in a world of the ranks that run
// on these processes, `env`'s among them. Groups and the calls that `env` hears of have the numbers
// of the processes.
world::RankEnv placed(const world::RankEnv& env, const std::vector<int64_t>& processes);

}  // namespace shardproof::sim::validate
