// A pipeline on paper: when each action of the tables runs if messages take no time, and what keeps
// a table from being run at all.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/pp/placement.h"
#include "parallel/style/action.h"

namespace shardproof {

// Time of one action on one chunk. `backward` is that of the whole backward, or of its first part
// in tables that have weight gradients as actions of their own.
struct ActionCosts {
  double forward = 1;
  double backward = 2;
  double weights = 0;
};

// The costs by which schedules are compared: a backward of two forwards, or of one where its
// weight gradients, of one too, are apart.
inline ActionCosts usual_costs(const Pipeline& pipeline) {
  return pipeline.splits_backward() ? ActionCosts{1, 1, 1} : ActionCosts{};
}

// `rank` cannot go on: its next action needs the result of another one.
struct BlockedAction {
  int64_t rank = 0;
  Action action;
  int64_t needs_rank = 0;
  Action needs;
  bool operator==(const BlockedAction&) const = default;
};

struct Simulation {
  std::vector<std::vector<double>> starts;  // of each action, by rank
  double makespan = 0;
  std::vector<double> idle;  // by rank: the makespan without the rank's own work
  // By rank: the largest number of microbatches, counted in each chunk, whose forward is done and
  // whose backward (whose weight gradients, if there are any) is not.
  std::vector<int64_t> held;
  // Empty if all actions ran. Otherwise a cycle: each needs the next one, the last one the first.
  // Where the needed action is in no table, it is the last one's, and there is no cycle.
  std::vector<BlockedAction> blocked;
};

// Runs the tables of all ranks. A forward needs that of the stage before, a backward its own
// forward and the backward of the stage behind it, weight gradients their backward.
Simulation simulate(const Placement& placement, const std::vector<std::vector<Action>>& tables,
                    const ActionCosts& costs);

// "B0.1": of microbatch 0 in chunk 1; "B0" where a rank has one chunk.
std::string action_name(const Action& action, int64_t chunks);
// "B of microbatch 0 in chunk 1".
std::string action_text(const Action& action);
// A sentence that names every action of `blocked`.
std::string blocked_text(const std::vector<BlockedAction>& blocked);

// The time of a step in which a rank has no work, by the papers' formulas: (p-1)(F+B) for gpipe,
// 1f1b, interleaved and bfs, (p-1)(F+B-W) for zb1p. None for zbv and dualpipev, and for zb1p, and
// bfs with several chunks, if there are fewer microbatches than ranks.
std::optional<double> idle_formula(const Pipeline& pipeline, int64_t microbatches,
                                   const ActionCosts& costs);
// That time divided by the time of the step: (p-1)/(mv+p-1) for gpipe, 1f1b and interleaved. The
// paper of the interleaved schedule divides by the time of the work alone: (p-1)/(mv).
std::optional<double> bubble_formula(const Pipeline& pipeline, int64_t microbatches,
                                     const ActionCosts& costs);

}  // namespace shardproof
