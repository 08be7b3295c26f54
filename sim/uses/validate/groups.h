// Which ranks talk to each other: the groups that reduce and gather, and the rounds of pairs.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/world/rank/rank_main.h"

namespace shardproof::sim::validate {

struct RankGroup {
  std::string name;  // "world", "node", "rail", "half0", "tp"
  std::vector<int64_t> ranks;
};

// Every group of which `rank` is a member, in one order for all ranks; groups of one are left out.
//
//   world          all ranks
//   <axis>         along each axis of the mesh, outer to inner as a training mesh counts ranks
//   node, rail     the ranks of a host; those of the same number on each host
//   half0, half1   hosts by the first, second .. bit of their number: a host that spoils sums is
//                  alone in having been in all the groups whose sums are wrong
std::vector<RankGroup> groups_of(int64_t rank, const std::vector<int64_t>& host_of,
                                 const std::vector<std::pair<std::string, int64_t>>& mesh);

// Whether groups_of() has a group of this name for some hosts, whatever the mesh.
bool is_built_in_group(const std::string& name);

// The partner of `rank` in this round; -1: it has none. In `pairing_rounds(n)` rounds every pair
// meets once (the circle method of round-robin tournaments).
int64_t partner_of(int64_t rank, int64_t world_size, int64_t round);
int64_t pairing_rounds(int64_t world_size);

// At most `most` of those rounds, in the order in which a stage of this round makes them; it begins
// where the stage of the round before ended.
std::vector<int64_t> pairings_of(int64_t world_size, int64_t most, int64_t stage_round);

// A rank that runs on another rank's process: rank r of a rotation by `shift` runs on process
// (r + shift) mod N. Of a part of the processes, N is their number and they count in their order.

int64_t process_of(int64_t rank, int64_t shift, int64_t world_size);
// The process of each rank.
std::vector<int64_t> rotation_of(const std::vector<int64_t>& processes, int64_t shift);
// The shifts of a case that runs on these processes: as it is, twice the same, and then `rotations`
// - 1 times moved, by a host where each has as many processes.
std::vector<int64_t> shifts_of(const std::vector<int64_t>& processes,
                               const std::vector<int64_t>& host_of, int64_t rotations);

// The environment of the rank that runs on the process of `env`, in a world of the ranks that run
// on these processes, `env`'s among them. Groups and the calls that `env` hears of have the numbers
// of the processes.
world::RankEnv placed(const world::RankEnv& env, const std::vector<int64_t>& processes);

}  // namespace shardproof::sim::validate
