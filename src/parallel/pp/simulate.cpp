#include "parallel/pp/simulate.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"

namespace shardproof {
namespace {

using Kind = Action::Kind;
using StageAction = std::tuple<int64_t, Kind, int64_t>;  // stage, kind, microbatch

double cost_of(Kind kind, const ActionCosts& costs) {
  switch (kind) {
    case Kind::kForward:
      return costs.forward;
    case Kind::kBackward:
      return costs.backward;
    case Kind::kWeights:
      return costs.weights;
  }
  return 0;
}

bool has_weights(const std::vector<Action>& table) {
  return std::ranges::any_of(table,
                             [](const Action& action) { return action.kind == Kind::kWeights; });
}

int64_t most_held(const std::vector<Action>& table) {
  const Kind frees = has_weights(table) ? Kind::kWeights : Kind::kBackward;
  std::set<int64_t> trained;  // chunks; the others hold nothing
  for (const Action& action : table) {
    if (action.kind == frees) trained.insert(action.chunk);
  }
  int64_t held = 0;
  int64_t most = 0;
  for (const Action& action : table) {
    if (!trained.contains(action.chunk)) continue;
    if (action.kind == Kind::kForward) most = std::max(most, ++held);
    if (action.kind == frees) --held;
  }
  return most;
}

class Run {
 public:
  Run(const Placement& placement, const std::vector<std::vector<Action>>& tables,
      const ActionCosts& costs)
      : placement_(placement), tables_(tables), costs_(costs), next_(tables.size(), 0) {}

  Simulation run() {
    Simulation result;
    result.starts.resize(tables_.size());
    std::vector<double> work(tables_.size(), 0);
    std::vector<double> ends(tables_.size(), 0);
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t rank = 0; rank < tables_.size(); ++rank) {
        for (; next_[rank] < tables_[rank].size(); ++next_[rank]) {
          const Action& action = tables_[rank][next_[rank]];
          const auto ready = ready_at(rank, action);
          if (!ready) break;
          progress = true;
          const double start = std::max(*ready, ends[rank]);
          const double cost = cost_of(action.kind, costs_);
          result.starts[rank].push_back(start);
          work[rank] += cost;
          ends[rank] = start + cost;
          done_[key_of(rank, action)] = ends[rank];
        }
      }
    }
    result.makespan = *std::ranges::max_element(ends);
    for (size_t rank = 0; rank < tables_.size(); ++rank) {
      result.idle.push_back(result.makespan - work[rank]);
      result.held.push_back(most_held(tables_[rank]));
    }
    result.blocked = blocked();
    return result;
  }

 private:
  StageAction key_of(size_t rank, const Action& action) const {
    const int64_t stage = placement_.stage_of({static_cast<int64_t>(rank), action.chunk});
    return {stage, action.kind, action.microbatch};
  }

  std::vector<StageAction> needs_of(size_t rank, const Action& action) const {
    const auto [stage, kind, microbatch] = key_of(rank, action);
    switch (kind) {
      case Kind::kForward:
        if (stage == 0) return {};
        return {{stage - 1, Kind::kForward, microbatch}};
      case Kind::kBackward:
        if (stage + 1 == placement_.stages()) return {{stage, Kind::kForward, microbatch}};
        return {{stage, Kind::kForward, microbatch}, {stage + 1, Kind::kBackward, microbatch}};
      case Kind::kWeights:
        return {{stage, Kind::kBackward, microbatch}};
    }
    return {};
  }

  // When everything that the action needs is there; none if something never was done.
  std::optional<double> ready_at(size_t rank, const Action& action) const {
    double ready = 0;
    for (const StageAction& needed : needs_of(rank, action)) {
      const auto found = done_.find(needed);
      if (found == done_.end()) return std::nullopt;
      ready = std::max(ready, found->second);
    }
    return ready;
  }

  bool finished(size_t rank) const { return next_[rank] == tables_[rank].size(); }

  BlockedAction blocked_on(size_t rank) const {
    const Action& action = tables_[rank][next_[rank]];
    for (const StageAction& needed : needs_of(rank, action)) {
      if (done_.count(needed) != 0) continue;
      const auto& [stage, kind, microbatch] = needed;
      const StagePlace place = placement_.place_of(stage);
      return {static_cast<int64_t>(rank), action, place.rank, {kind, microbatch, place.chunk}};
    }
    SHARDPROOF_ASSERT(false, "a blocked action needs something");
  }

  // From rank to rank, until one comes again.
  std::vector<BlockedAction> blocked() const {
    size_t rank = 0;
    while (rank < tables_.size() && finished(rank)) ++rank;
    if (rank == tables_.size()) return {};
    std::vector<BlockedAction> path;
    for (;;) {
      const auto again = std::ranges::find(path, static_cast<int64_t>(rank), &BlockedAction::rank);
      if (again != path.end()) return {again, path.end()};
      path.push_back(blocked_on(rank));
      rank = static_cast<size_t>(path.back().needs_rank);
      const auto& table = tables_[rank];
      if (std::ranges::find(table, path.back().needs) == table.end()) return path;
    }
  }

  const Placement& placement_;
  const std::vector<std::vector<Action>>& tables_;
  const ActionCosts& costs_;
  std::vector<size_t> next_;            // by rank
  std::map<StageAction, double> done_;  // when
};

}  // namespace

Simulation simulate(const Placement& placement, const std::vector<std::vector<Action>>& tables,
                    const ActionCosts& costs) {
  SHARDPROOF_ASSERT(std::ssize(tables) == placement.ranks,
                    fmt::format("{} tables for {} ranks", tables.size(), placement.ranks));
  return Run(placement, tables, costs).run();
}

std::string action_name(const Action& action, int64_t chunks) {
  const std::string name =
      fmt::format("{}{}", "FBW"[static_cast<size_t>(action.kind)], action.microbatch);
  return chunks == 1 ? name : fmt::format("{}.{}", name, action.chunk);
}

std::string action_text(const Action& action) {
  constexpr const char* kKinds[] = {"F", "B", "W"};
  return fmt::format("{} of microbatch {} in chunk {}", kKinds[static_cast<size_t>(action.kind)],
                     action.microbatch, action.chunk);
}

std::string blocked_text(const std::vector<BlockedAction>& blocked) {
  std::string text;
  for (const BlockedAction& each : blocked) {
    text +=
        fmt::format("{}{} on rank {} needs {} on rank {}", text.empty() ? "" : "; ",
                    action_text(each.action), each.rank, action_text(each.needs), each.needs_rank);
  }
  return text;
}

std::optional<double> idle_formula(const Pipeline& pipeline, int64_t microbatches,
                                   const ActionCosts& costs) {
  const auto others = static_cast<double>(pipeline.ranks - 1);
  const bool filled = microbatches >= pipeline.ranks;
  switch (pipeline.schedule) {
    case PipelineSchedule::kBreadthFirst:
      if (pipeline.chunks > 1 && !filled) return std::nullopt;
      [[fallthrough]];
    case PipelineSchedule::kGPipe:
    case PipelineSchedule::k1F1B:
    case PipelineSchedule::kInterleaved:
      return others * (costs.forward + costs.backward);
    case PipelineSchedule::kZb1p:
      if (!filled) return std::nullopt;
      return others * (costs.forward + costs.backward - costs.weights);
    default:
      return std::nullopt;
  }
}

std::optional<double> bubble_formula(const Pipeline& pipeline, int64_t microbatches,
                                     const ActionCosts& costs) {
  const auto idle = idle_formula(pipeline, microbatches, costs);
  if (!idle) return std::nullopt;
  const double work = static_cast<double>(microbatches * pipeline.chunks) *
                      (costs.forward + costs.backward + costs.weights);
  return *idle / (work + *idle);
}

}  // namespace shardproof
